"""Tests of `gpushare_plugin.model.account`."""

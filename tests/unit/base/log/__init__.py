"""Tests of `gpushare_plugin.base.log`."""

"""Tests of `gpushare_plugin.model.usage`."""

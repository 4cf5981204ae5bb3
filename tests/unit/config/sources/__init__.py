"""Tests of `gpushare_plugin.config.sources`."""

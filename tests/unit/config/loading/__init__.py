"""Tests of `gpushare_plugin.config.loading`."""

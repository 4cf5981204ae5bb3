"""Tests of `gpushare_plugin.config.schema`."""

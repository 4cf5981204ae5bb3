"""Tests of `gpushare_plugin.driver_limits`."""

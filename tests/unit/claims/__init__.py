"""Tests of `gpushare_plugin.sharing`."""

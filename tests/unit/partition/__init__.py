"""Tests of `gpushare_plugin.partition`."""

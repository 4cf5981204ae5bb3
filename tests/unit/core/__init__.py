"""Tests of `gpushare_plugin.core`."""

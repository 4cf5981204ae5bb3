"""Tests of `gpushare_plugin.mps`."""

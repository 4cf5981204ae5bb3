"""Tests of `gpushare_plugin.slices`."""

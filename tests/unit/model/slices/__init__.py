"""Tests of `gpushare_plugin.model.slices`."""

"""Tests of `gpushare_plugin.testing`."""

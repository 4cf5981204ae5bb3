"""Tests of `gpushare_plugin.cluster`."""

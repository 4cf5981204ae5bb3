"""Tests of `gpushare_plugin.adapters.cluster`."""

"""Tests of `gpushare_plugin.host.mps`."""

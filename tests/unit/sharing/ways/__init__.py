"""Tests of `gpushare_plugin.sharing.ways`."""

"""Tests of `gpushare_plugin.model.partition.search`."""

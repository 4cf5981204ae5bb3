"""Tests of `gpushare_plugin.adapters.cluster.whole_cluster`."""

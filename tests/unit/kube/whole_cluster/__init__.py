"""Tests of `gpushare_plugin.kube.whole_cluster`."""

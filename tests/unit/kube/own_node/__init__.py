"""Tests of `gpushare_plugin.kube.own_node`."""

"""Tests of `gpushare_plugin.adapters.cluster.own_node.requests`."""

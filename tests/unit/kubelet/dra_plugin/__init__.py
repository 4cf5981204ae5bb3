"""Tests of `gpushare_plugin.kubelet.dra_plugin`."""

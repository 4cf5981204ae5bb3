"""Tests of `gpushare_plugin.kubelet`."""

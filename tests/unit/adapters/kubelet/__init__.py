"""Tests of `gpushare_plugin.adapters.kubelet`."""

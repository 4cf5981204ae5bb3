"""Tests of `gpushare_plugin.kube`."""

"""Tests of `gpushare_plugin.kube.dra`, against the API server of the test kit."""

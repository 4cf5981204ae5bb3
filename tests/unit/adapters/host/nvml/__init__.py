"""Tests of `gpushare_plugin.adapters.host.nvml`."""

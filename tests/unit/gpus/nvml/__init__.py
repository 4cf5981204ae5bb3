"""Tests of `gpushare_plugin.gpus.nvml`."""

"""Tests of `gpushare_plugin.gpus`."""

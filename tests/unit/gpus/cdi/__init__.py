"""Tests of `gpushare_plugin.gpus.cdi`."""

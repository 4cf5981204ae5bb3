"""Tests of `gpushare_plugin.mig`."""

"""Tests of `gpushare_plugin.adapters.host.mig`."""

"""Tests of `gpushare_plugin.programs.mig`."""

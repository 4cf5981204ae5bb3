"""Tests of `gpushare_plugin.programs.mps`."""

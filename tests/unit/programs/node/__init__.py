"""Tests of `gpushare_plugin.programs.node`, part by part."""

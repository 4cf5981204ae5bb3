"""Tests of `gpushare_plugin.node`, part by part."""

"""Tests of gpushare_plugin.doctor, on nodes described as folders."""

"""Tests of gpushare."""

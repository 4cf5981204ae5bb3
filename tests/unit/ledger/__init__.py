"""Tests of `gpushare_plugin.ledger`."""

"""Tests of `gpushare_plugin.partitioner`, against an API server; the tests stand in for the daemons."""

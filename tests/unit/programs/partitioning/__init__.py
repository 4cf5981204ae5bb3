"""Tests of `gpushare_plugin.programs.partitioning`, against an API server; the tests stand in for the daemons."""

"""Tests of `gpushare_plugin.programs.partitioning`, against an API server whose nodes' daemons the tests stand in for."""

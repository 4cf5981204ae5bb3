"""Tests of `gpushare_plugin.programs.scheduler`, over HTTP and against an API server."""

"""Tests of `gpushare_plugin.extender`, over HTTP and against an API server."""

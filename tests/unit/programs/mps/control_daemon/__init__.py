"""Tests of `gpushare_plugin.programs.mps.control_daemon`."""

"""Tests of metrics, alerts and the dashboard with the real Prometheus."""

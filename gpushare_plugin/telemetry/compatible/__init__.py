"""Gauges under the names that dashboards of other programs read, made from what ours show."""

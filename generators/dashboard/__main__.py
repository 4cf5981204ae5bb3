"""Writes the dashboard of the chart: `python -m generators.dashboard`."""

from generators.dashboard import grafana

grafana.FILE.write_text(grafana.dashboard())

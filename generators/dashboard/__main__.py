"""Writes the dashboard of the chart and the table of its panels: `python -m generators.dashboard`."""

from generators.dashboard import grafana, page

grafana.FILE.write_text(grafana.dashboard())
page.PAGE.write_text(page.page())

"""The dashboard for Grafana inside the chart: its panels, what they ask Prometheus, and what is made of them."""

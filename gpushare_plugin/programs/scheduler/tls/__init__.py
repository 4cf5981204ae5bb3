"""HTTPS of the scheduler extender: its certificates, and when they end."""

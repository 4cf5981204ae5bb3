"""Kubernetes Events of one program: their form, the backlog of unsent Events, combining, and sending."""

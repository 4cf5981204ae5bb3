"""Kubernetes Events of this node: their form, those not sent yet, which become one, and how they are sent."""

"""Kubernetes Events of one program: their form, those not sent yet, which become one, and how they are sent."""

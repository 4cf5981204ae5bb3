"""The kubelet's API for DRA drivers: registration, the preparation of claims, the health of devices."""

"""The ResourceSlices of the own node, and the ResourceClaims that are allocated there (`resource.k8s.io/v1`)."""

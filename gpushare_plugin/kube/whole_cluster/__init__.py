"""Every Node and Pod of a cluster: read once or followed."""

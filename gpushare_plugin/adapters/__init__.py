"""Access to the outside world: packages for the kubelet, the host and the cluster, which never import one another."""

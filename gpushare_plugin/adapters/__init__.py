"""The outside worlds, one package each: the kubelet, the host and the cluster; they never import each other."""

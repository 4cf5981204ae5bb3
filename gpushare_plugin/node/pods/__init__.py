"""The pods of this node: calls of the kubelet for pods, promises, holdings, usage and evictions."""

"""The rules of kube-scheduler on whether a node can take a pod: labels, taints, host ports and resources."""

"""Whether a node can take a pod, as kube-scheduler judges it: by labels, taints, host ports and resources."""

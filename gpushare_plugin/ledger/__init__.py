"""The account of a cluster: each GPU's units, who holds them, what is promised, and where a pod would go; pure.

No clock and no input or output: times are passed in, objects of the API server are read by `kube`.
"""

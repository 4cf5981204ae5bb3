"""This node in the cluster: requests from its Node and a ConfigMap, and the state published on its Node."""

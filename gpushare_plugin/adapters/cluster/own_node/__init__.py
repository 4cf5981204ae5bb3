"""This node in the cluster: what its Node and a ConfigMap request, and what is published on its Node."""

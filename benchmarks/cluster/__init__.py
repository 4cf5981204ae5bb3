"""A large cluster: Nodes and pods of realistic size, and the API server in another process that has them."""

"""Commands for a whole cluster, which talk to the API server."""

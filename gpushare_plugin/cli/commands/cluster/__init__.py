"""Commands for a whole cluster, all of which talk to the API server."""

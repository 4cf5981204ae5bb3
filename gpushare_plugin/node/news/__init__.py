"""News of a node: typed items about changes, and the subscribers of the items."""

"""Pure: what a node offers to ResourceClaims, and what a container gets by a claim."""

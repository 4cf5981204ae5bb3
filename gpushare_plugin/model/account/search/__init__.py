"""Where a pod would go: on one node, or on each of thousands; and why not there."""

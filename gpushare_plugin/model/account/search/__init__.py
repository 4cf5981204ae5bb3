"""The search for a place for a pod: on one node or on thousands of nodes, with the reason for every refusal."""

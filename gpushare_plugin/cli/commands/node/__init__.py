"""Commands that run on a node: its daemons, and what they report."""

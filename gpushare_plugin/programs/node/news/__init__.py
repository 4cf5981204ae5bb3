"""What happens on a node, as typed news for subscribers."""

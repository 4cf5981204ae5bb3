"""Where settings come from, and that they changed."""

"""What is where, as data and as tables."""

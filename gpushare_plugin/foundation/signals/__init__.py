"""What signals do to a program, and how they end it."""

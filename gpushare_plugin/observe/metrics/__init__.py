"""The metrics of each program: names, meanings, and the source of the values."""

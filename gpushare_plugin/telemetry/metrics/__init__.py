"""The metrics of each program: what they are named, what they mean, and how their values are found or counted."""

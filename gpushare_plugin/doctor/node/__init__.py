"""The node that is looked at: its files and packages, what a config needs of it, and what is said of it."""

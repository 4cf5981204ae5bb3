"""The log: the form of its lines, and the queue through which a daemon writes them."""

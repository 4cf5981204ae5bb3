"""The pods of this node: which one is asking, what it was promised, and what it really has."""

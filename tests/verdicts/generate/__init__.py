"""Random inputs by seed, as the objects that come from outside; nothing here imports the product."""

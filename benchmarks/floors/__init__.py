"""The least that could do the same, each a process of its own: what a figure is compared with."""

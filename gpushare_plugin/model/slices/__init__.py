"""Slices of a GPU: what a slice is, the layout of a GPU, and the room for more; the same for nodes and the partitioner.

Pure, and below all that knows GPUs: nothing here knows a card, a unit, a node or a pod.
"""

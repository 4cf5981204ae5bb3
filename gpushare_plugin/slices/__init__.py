"""Slices of a GPU: names of slices, the layout of a GPU, and the room for more; the same for nodes and the partitioner.

Pure, and below all modules about GPUs: no module of the package knows a card, a unit, a node or a pod.
"""

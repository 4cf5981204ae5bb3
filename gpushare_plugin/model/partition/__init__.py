"""Automatic partitioning, decided: which GPU gets which slices for the pods that wait; pure.

No clock and no input or output: the time is passed in, and what is decided is written by others.
"""

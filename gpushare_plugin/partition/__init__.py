"""The decisions of automatic partitioning: the slices that GPUs get for waiting pods. All code here is pure.

The package has no clock, no input and no output: callers pass the time in and write the decisions.
"""

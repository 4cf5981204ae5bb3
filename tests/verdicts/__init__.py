"""Recorded verdicts: what extender, partitioner, chooser and the node's cut decided about 10,000 random inputs.

`generate` makes the inputs from a seed, as raw objects of the outside, and knows nothing of the product. `deciders`
has the few modules that do: each gives such an input to the code and returns a plain verdict. `record` writes what was
decided into a file, and `test_verdicts` compares today's code with that file.
"""

"""`gpushare mps`: runs NVIDIA's MPS control daemon on a node; and the files exchanged with `gpushare run`."""

"""How much of the GPUs of a cluster is allocated, and how much of no use."""

from gpushare_plugin.base.structs import Struct


class PackedGpus(Struct, frozen=True):
    """The GPUs of a cluster that the policy packs, in whole GPUs."""

    gpus: float
    """All usable GPUs that are whole or shared by memory."""
    allocated: float
    """What pods have of these GPUs, or were promised."""
    stranded: float
    """What is free and of no use: too small, or on nodes without CPU or memory for it."""
    too_small: float
    """What is free in pieces smaller than the smallest common share of the pods that came lately."""

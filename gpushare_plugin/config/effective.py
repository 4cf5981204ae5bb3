"""The config in effect on a node, as changed by node labels."""

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.slices.slice import SliceKind


class EffectiveConfig(Struct, frozen=True):
    """A config, and requests of node labels that a config cannot express."""

    config: Config
    """The config, as changed by node labels."""
    cgpu_disabled: bool = False
    """Whether ACK's node label `cgpu.disable.isolation` is true: ACK's kernel module does not isolate containers."""
    partitioning: SliceKind | None = None
    """The kind of slices that all GPUs are cut into as the node's annotations want; None if the config decides.

    With a kind of slices, no GPU is shared in another way.
    """

"""What a node serves: its config as node labels change it."""

from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.slices.slice import Kind


class EffectiveConfig(Struct, frozen=True):
    """A config, and what node labels request that no config can.

    `cgpu_disabled` is the node label `cgpu.disable.isolation` of ACK: its kernel module leaves containers alone.
    `partitioning` is how all GPUs of the node are cut into the slices that its annotations want, and no GPU is shared
    in another way; None where the config says how GPUs are shared.
    """

    config: Config
    cgpu_disabled: bool = False
    partitioning: Kind | None = None

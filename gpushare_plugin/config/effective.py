"""What a node serves: its config as node labels change it."""

from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.foundation.structs import Struct


class EffectiveConfig(Struct, frozen=True):
    """A config, and what node labels request that no config can.

    `cgpu_disabled` is the node label `cgpu.disable.isolation` of ACK: its kernel module leaves containers alone.
    """

    config: Config
    cgpu_disabled: bool = False

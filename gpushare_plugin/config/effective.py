"""What a node serves: its config as node labels change it."""

from dataclasses import dataclass

from gpushare_plugin.config.schema.sections import Config


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """A config, and what node labels request that no config can.

    `cgpu_disabled` is the node label `cgpu.disable.isolation` of ACK: its kernel module leaves containers alone.
    """

    config: Config
    cgpu_disabled: bool = False

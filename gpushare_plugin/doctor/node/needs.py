"""What the config of the daemon needs of the node: a node is right or wrong for a config."""

from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.isolations import includes_driver, is_always_driver, is_always_mps, without_driver
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.namespaces import MpsProtocol
from gpushare_plugin.driver_limits.exchange import DEFAULT_ROOT as DEFAULT_LIMITS_ROOT
from gpushare_plugin.kubelet.paths import DEFAULT_POD_RESOURCES_SOCKET

CONFIG = "config"
"""The subject of the line about the config."""
_BY_RUNTIME = frozenset({"envvar", "volume-mounts"})
"""Values of `deviceListStrategy` that NVIDIA's runtime carries out."""


class ConfigNeeds(Struct, frozen=True):
    """The parts of a config that decide what a node must have."""

    strategies: tuple[str, ...] = ("envvar",)
    """`flags.plugin.deviceListStrategy`."""
    cdi: bool = False
    """Whether containers get their GPUs by the names of CDI devices."""
    cdi_kind: str = "nvidia.com/gpu"
    """`flags.plugin.cdiKind`: the kind of the CDI devices that gpushare names."""
    by_index: bool = False
    """Whether GPUs are named by index, not by UUID (`flags.plugin.deviceIDStrategy`)."""
    driver_root: str = "/"
    """`flags.nvidiaDriverRoot`, a path of the node."""
    mps_root: str = "/run/nvidia/mps"
    """`flags.mpsRoot`."""
    mps: bool = False
    """Whether the config shares GPUs by MPS."""
    mps_protocol: MpsProtocol = 2
    """`flags.mpsProtocol`."""
    driver_limits: bool = False
    """Whether an entry of the config names the limits of the driver as isolation."""
    only_driver_limits: bool = False
    """Whether an entry of the config names no isolation without the limits of the driver."""
    instead_of_driver: tuple[str, ...] = ()
    """The isolations that entries of the config list first behind the limits of the driver."""
    burst: bool = False
    """Whether an entry of the config lets its shares use more memory while that is free."""
    limits_root: str = str(DEFAULT_LIMITS_ROOT)
    """The root of driver limits, which daemon and agent share, a path of the node."""
    file: str | None = None
    """The config file; None without one."""
    pod_resources_socket: str = str(DEFAULT_POD_RESOURCES_SOCKET)
    """Where the daemon gets the kubelet's pod-resources socket from, a path of the node."""

    @property
    def runtime(self) -> bool:
        """Whether containers get their GPUs from NVIDIA's runtime."""
        return not _BY_RUNTIME.isdisjoint(self.strategies)


def judged_by(needs: ConfigNeeds) -> str:
    """Return which config decides what is right on the node."""
    return f"the node is judged by {needs.file or 'the defaults (no config file)'}: {strategies(needs)}"


def strategies(needs: ConfigNeeds) -> str:
    """Return how the config gives GPUs to containers, in words."""
    return f"deviceListStrategy {', '.join(needs.strategies)}"


def by_cdi(needs: ConfigNeeds) -> str:
    """Return what makes the daemon give GPUs by CDI, and how to judge by that, as an instruction."""
    return (
        "give GPUs by CDI, with `helm upgrade … --reuse-values --set deviceListStrategy=cdi-cri`, or with "
        "`deviceListStrategy: cdi-cri` below flags.plugin in the config file of a daemon without the chart: the daemon "
        "then writes a specification of its own, and nothing has to be repeated after a change of the driver. Check "
        "with `gpushare doctor --device-list-strategy=cdi-cri`: without this option, doctor still judges by "
        + strategies(needs)
    )


def needs_of(
    config: Config, file: str | None, pod_resources_socket: Path, limits_root: Path = DEFAULT_LIMITS_ROOT
) -> ConfigNeeds:
    """Return what a node must have for `config` and a daemon with this socket of the kubelet, a path of the node.

    `file` is the file of the config, None without one, and `limits_root` the root of driver limits, a path of the node.
    """
    plugin, sharing = config.flags.plugin, config.sharing
    return ConfigNeeds(
        strategies=tuple(plugin.device_list_strategy),
        cdi=plugin.uses_cdi,
        cdi_kind=plugin.cdi_kind,
        by_index=plugin.device_id_strategy == "index",
        driver_root=config.flags.nvidia_driver_root,
        mps_root=config.flags.mps_root,
        mps=bool(sharing.mps) or any(map(is_always_mps, sharing.isolations)),
        mps_protocol=config.flags.mps_protocol,
        driver_limits=sharing.includes_driver,
        only_driver_limits=any(map(is_always_driver, sharing.isolations)),
        instead_of_driver=_instead_of_driver(config),
        burst=sharing.bursts,
        limits_root=str(limits_root),
        file=file,
        pod_resources_socket=str(pod_resources_socket),
    )


def _instead_of_driver(config: Config) -> tuple[str, ...]:
    listing = filter(includes_driver, config.sharing.isolations)
    others = filter(None, map(without_driver, listing))
    return tuple(dict.fromkeys(names[0] for names in others))

"""What the config of the daemon needs of the node: a node is right or wrong for a config."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.isolations import includes_driver
from gpushare_plugin.config.schema.sections import Config, MpsResource, SizedDevices
from gpushare_plugin.config.schema.values import AllDevices, DeviceList, Devices
from gpushare_plugin.core.namespaces import MpsProtocol
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, wrong
from gpushare_plugin.driver_limits.exchange import DEFAULT_ROOT as DEFAULT_LIMITS_ROOT
from gpushare_plugin.kubelet.paths import DEFAULT_POD_RESOURCES_SOCKET

CONFIG = "config"
"""The subject of the line about the config."""
CHECK_BY_CDI = "gpushare doctor --device-list-strategy=cdi-cri"
"""The command that judges a node by CDI."""
_BY_RUNTIME = frozenset({"envvar", "volume-mounts"})
"""Values of `deviceListStrategy` that NVIDIA's runtime carries out."""


class EntryNeeds(Struct, frozen=True):
    """What an entry of the config needs for its containers."""

    isolations: tuple[str, ...]
    """The isolations in the order of the config; the node uses the first that it has."""
    bursts: bool = False
    """Whether the entry lets its shares use more memory while that is free."""


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
    mps_protocol: MpsProtocol = 2
    """`flags.mpsProtocol`."""
    hami_directory: str = "/usr/local/vgpu"
    """`hamiCore.libraryDirectory`, a path of the node."""
    entries: tuple[EntryNeeds, ...] = ()
    """The entries of the config that share GPUs."""
    limits_root: str = str(DEFAULT_LIMITS_ROOT)
    """The root of driver limits, which daemon and agent share, a path of the node."""
    file: str | None = None
    """The config file; None without one."""
    pod_resources_socket: str = str(DEFAULT_POD_RESOURCES_SOCKET)
    """Where the daemon gets the kubelet's pod-resources socket from, a path of the node."""
    dra: str | None = None
    """The name of the DRA driver of the section `dra`, None without that section."""
    dra_shares: bool = False
    """Whether the config certainly gives shares of GPUs by claim, and not whole GPUs only."""
    check_by_cdi: str = CHECK_BY_CDI
    """The command that judges the same node by CDI, with the other options that doctor was given."""

    @property
    def driver_limits(self) -> bool:
        """Whether an entry of the config names the limits of the driver as isolation."""
        return any(includes_driver(entry.isolations) for entry in self.entries)

    @property
    def claim_kind(self) -> str | None:
        """The kind of the CDI devices of claims, None where the config gives no GPU by claim."""
        return self.dra and f"{self.dra}/claim"

    @property
    def runtime(self) -> bool:
        """Whether containers get their GPUs from NVIDIA's runtime."""
        return not _BY_RUNTIME.isdisjoint(self.strategies)


def judged_by(needs: ConfigNeeds) -> str:
    """Return which config decides what is right on the node."""
    return f"the node is judged by {needs.file or 'the defaults (no config file)'}: {strategies(needs)}"


def unfit(needs: ConfigNeeds, misfits: Sequence[str]) -> Diagnosis:
    """Return the line about a config that does not fit the GPUs of the node; `misfits` says where and why."""
    return wrong(
        CONFIG,
        f"{judged_by(needs)}. The daemon rejects it for the GPUs of this node: {'; '.join(misfits)}",
        "change this in the config, or give this node a config of its own by the label nvidia.com/device-plugin.config",
    )


def strategies(needs: ConfigNeeds) -> str:
    """Return how the config gives GPUs to containers, in words."""
    return f"deviceListStrategy {', '.join(needs.strategies)}"


def by_cdi(needs: ConfigNeeds, enables: str = "") -> str:
    """Return what makes the daemon give GPUs by CDI, and how to judge by that, as an instruction.

    `enables` is what turns CDI on in the container runtime, as an instruction; empty where CDI is on.
    """
    return (
        f"{enables and f'{enables}. Then '}give GPUs by CDI, with `helm upgrade gpushare charts/gpushare --namespace "
        "kube-system --reuse-values --set deviceListStrategy=cdi-cri`, or with `deviceListStrategy: cdi-cri` below "
        "flags.plugin in the config file of a daemon without the chart: the daemon then writes a specification of its "
        f"own, and nothing has to be repeated after a change of the driver. Check with `{needs.check_by_cdi}`: without "
        f"this option, doctor still judges by {strategies(needs)}"
    )


def needs_of(
    config: Config,
    file: str | None,
    pod_resources_socket: Path,
    limits_root: Path = DEFAULT_LIMITS_ROOT,
    check_by_cdi: str = CHECK_BY_CDI,
) -> ConfigNeeds:
    """Return what a node must have for `config` and a daemon with this socket of the kubelet, a path of the node.

    `file` is the file of the config, None without one, `limits_root` the root of driver limits, a path of the node, and
    `check_by_cdi` the command that judges the node by CDI.
    """
    plugin = config.flags.plugin
    return ConfigNeeds(
        strategies=tuple(plugin.device_list_strategy),
        cdi=plugin.uses_cdi,
        cdi_kind=plugin.cdi_kind,
        by_index=plugin.device_id_strategy == "index",
        driver_root=config.flags.nvidia_driver_root,
        mps_root=config.flags.mps_root,
        mps_protocol=config.flags.mps_protocol,
        hami_directory=config.hami_core.library_directory,
        entries=tuple(_entries(config)),
        limits_root=str(limits_root),
        file=file,
        pod_resources_socket=str(pod_resources_socket),
        dra=config.dra.driver if config.dra else None,
        dra_shares=_shares_by_claim(config),
        check_by_cdi=check_by_cdi,
    )


def _shares_by_claim(config: Config) -> bool:
    """Return whether an entry of the config certainly shares a GPU that claims get."""
    dra = config.dra
    return dra is not None and any(_meet(dra.devices, entry.devices) for entry in config.sharing.entries)


def _meet(some: Devices, others: Devices) -> bool:
    """Return whether devices of two sections certainly have a device in common."""
    if isinstance(some, DeviceList) and isinstance(others, DeviceList):
        return not set(some.references).isdisjoint(others.references)
    return AllDevices() in {some, others}


def _entries(config: Config) -> Iterator[EntryNeeds]:
    """Yield what each entry needs; below `sharing.mps`, `driver` means the same as `driver+mps`."""
    for entry in config.sharing.entries:
        names: tuple[str, ...] = entry.isolation or ("mps",)
        if isinstance(entry, MpsResource | SizedDevices):
            names = tuple("driver+mps" if name == "driver" else name for name in names)
        yield EntryNeeds(names, entry.burst is not None)

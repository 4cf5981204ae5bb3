"""CUDA MPS: whether the node can run it, and whether `gpushare mps` does.

Facts: `nvidia-cuda-mps-control` is a program of the driver in usr/bin (chapter "Installed components" of the driver's
README); NVIDIA's device plugin keeps the pipes of its own MPS daemon in `<root>/nvidia.com/gpu/pipe`
(NVIDIA/k8s-device-plugin, cmd/mps-control-daemon/mps/root.go).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.config.schema.isolations import includes_mps
from gpushare_plugin.core.driver_limits import FIRST_DRIVER, has_driver_limits
from gpushare_plugin.core.namespaces import WITH_NAMESPACES
from gpushare_plugin.doctor.node.choice import takes_next
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, locked
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.node.sockets import listens
from gpushare_plugin.doctor.subjects.driver import OPERATORS_ROOT, DriverFacts
from gpushare_plugin.doctor.subjects.operator import POD_LOGS
from gpushare_plugin.doctor.subjects.plugins import OTHERS, PluginFacts
from gpushare_plugin.gpus.exchange import ExchangeError, read_message
from gpushare_plugin.mps.exchange import MpsRoot, MpsSettings, MpsStatus

SUBJECT = "MPS"
_PROGRAM = "nvidia-cuda-mps-control"
_DAEMON_SET = "mps-control-daemon"
"""The end of the name of the DaemonSet (NVIDIA/k8s-device-plugin, deployments/helm)."""
_CONTROL = f"usr/bin/{_PROGRAM}"
_RUN = (
    "run `gpushare mps` in a pod of this node: set mps.enabled=true of the chart, which runs it on nodes with "
    "the label gpushare/mps=true; the daemon of gpushare sets this label"
)


class MpsFacts(Struct, frozen=True):
    """What the node shows of MPS."""

    control: str | None = None
    """The MPS control daemon below the driver root, a path of the node; None without one."""
    listening: bool = False
    """Whether an MPS control daemon listens in our MPS root."""
    agent: bool | None = False
    """Whether `gpushare mps` runs; None where that cannot be seen."""
    requested: bool = False
    """Whether the daemon of gpushare wants a GPU under MPS."""
    not_served: tuple[str, ...] = ()
    """Why `gpushare mps` does not serve what is wanted."""
    of_others: tuple[str, ...] = ()
    """Pipes of MPS daemons that are not ours, paths of the node."""
    units: tuple[str, ...] = ()
    """The services of systemd that run an MPS control daemon, by name."""
    of_daemon_set: bool = False
    """Whether the node has a pod of NVIDIA's DaemonSet that runs an MPS control daemon."""
    left_over: tuple[str, ...] = ()
    """Pipes of MPS daemons that have ended, paths of the node."""


class MpsUse(NamedTuple):
    """What the config comes to on a node with its isolations that include MPS."""

    needed: bool
    """Whether the config shares a GPU of the node by MPS."""
    lack: str = ""
    """Why no GPU of the node can be shared by MPS; empty if one can."""
    instead: tuple[str, ...] = ()
    """The isolations that the config takes instead of MPS, by name."""


def read_mps(host: HostRoot, needs: ConfigNeeds, driver: DriverFacts) -> MpsFacts:
    """Return what the node shows of MPS."""
    root = MpsRoot(host.resolved(needs.mps_root))
    control = None if driver.root is None else host.first(_control_below(driver.root))
    pipes = {place: listens(host, f"{place}/control") for place in _pipes_of_others(host, needs.mps_root)}
    others = tuple(place for place, listening in pipes.items() if listening is not False)
    agent, ours = locked(root.lock), f"{needs.mps_root}/pipe"
    listening = listens(host, f"{ours}/control") is True
    # Where `gpushare mps` runs, this socket is that of its own control daemon.
    dead = [ours] if agent is False and host.is_socket(f"{ours}/control") and not listening else []
    left_over = (*(place for place in pipes if place not in others), *dead)
    facts = MpsFacts(
        control,
        listening,
        agent,
        of_others=others,
        units=tuple(_units(host)),
        of_daemon_set=_has_pod(host),
        left_over=left_over,
    )
    try:
        status = read_message(root.status, MpsStatus) or MpsStatus()
        wanted = read_message(root.wanted, MpsSettings) or MpsSettings()
    except ExchangeError as error:
        return replace(facts, requested=True, not_served=(str(error),))
    troubles = list(_troubles(status, wanted))
    if wanted.gpus and not troubles and listens(host, f"{needs.mps_root}/pipe/control") is False:
        troubles = [f"no MPS control daemon listens at {needs.mps_root}/pipe/control"]
    return replace(facts, requested=bool(wanted.gpus), not_served=tuple(troubles))


def _units(host: HostRoot) -> Iterator[str]:
    """Yield the services of systemd with MPS in their name that run its control daemon."""
    for folder in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"):
        for file in host.matching(f"{folder}/*mps*.service"):
            if _PROGRAM in host.line(file):
                yield file.rpartition("/")[2]


def _has_pod(host: HostRoot) -> bool:
    """Return whether the node has the logs of a pod of NVIDIA's DaemonSet for MPS."""
    return bool(host.names(POD_LOGS, f"*{_DAEMON_SET}-*"))


def _control_below(root: str) -> str:
    """Return where a driver root has the MPS control daemon."""
    return f"{root.rstrip('/')}/{_CONTROL}"


def _troubles(status: MpsStatus, wanted: MpsSettings) -> Iterator[str]:
    """Yield why `gpushare mps` does not serve what is wanted."""
    if status.trouble:
        yield status.trouble
        return
    for gpu in wanted.gpus:
        if reason := status.why_not(gpu, wanted):
            yield f"{gpu.uuid}: {reason}"


def _pipes_of_others(host: HostRoot, root: str) -> Iterator[str]:
    """Yield the pipe directories of NVIDIA's plugin, and the default one, that have the socket of a control daemon."""
    vendors = [f"{root}/{name}" for name in host.names(root) if "." in name]
    places = [f"{vendor}/{name}/pipe" for vendor in vendors for name in host.names(vendor)]
    for place in (*places, "/tmp/nvidia-mps"):  # noqa: S108 - where CUDA's programs look, too
        if host.is_socket(f"{place}/control"):
            yield place


def lacks_protocol(needs: ConfigNeeds, driver: str) -> str:
    """Return that MPS of a driver, of empty version if unknown, lacks the protocol of the config; empty if not."""
    if needs.mps_protocol != WITH_NAMESPACES or not driver or has_driver_limits(driver):
        return ""
    return (
        f"MPS of driver {driver} has no protocol 3, which the config names (mpsProtocol); drivers from {FIRST_DRIVER} "
        "on have it"
    )


def judge_mps(
    facts: MpsFacts, needs: ConfigNeeds, driver: DriverFacts, plugins: PluginFacts, use: MpsUse
) -> Iterator[Diagnosis]:
    """Yield the line about MPS; `plugins` are the device plugins, and `use` is what the config comes to here."""
    dead = ", ".join(f"{place}/control" for place in facts.left_over)
    rest = f"; left over of a daemon that has ended, and in nobody's way: {dead} (nobody listens)" if dead else ""
    for line in _needed(facts, needs, driver, plugins) if use.needed else _unused(facts, needs, use):
        yield replace(line, found=line.found + rest)


def _others(facts: MpsFacts) -> str:
    return f"another MPS control daemon has its pipes in {', '.join(facts.of_others)}" if facts.of_others else ""


def _unused(facts: MpsFacts, needs: ConfigNeeds, use: MpsUse) -> Iterator[Diagnosis]:
    """Yield the line about MPS that the config does not need on this node."""
    found = "not used by the config"
    if use.lack and use.instead:
        found = takes_next(use.lack, use.instead)
    elif any(includes_mps(entry.isolations) for entry in needs.entries):
        found = "not used on this node, where the config takes other isolations of its lists"
    yield right(SUBJECT, "; ".join(filter(None, (found, _others(facts), _own(facts, needs)))))


def _own(facts: MpsFacts, needs: ConfigNeeds) -> str:
    """Return what runs in our root though nothing needs MPS, and what ends that; empty if nothing does."""
    if facts.agent:
        return (
            f"`gpushare mps` runs in {needs.mps_root} nevertheless, until the daemon of gpushare takes the label "
            "gpushare/mps from the node"
        )
    if not facts.listening:
        return ""
    pipe = f"{needs.mps_root}/pipe"
    return f"an MPS control daemon listens in {pipe} nevertheless; to end that daemon, {_quits(facts, (pipe,))}"


def _needed(facts: MpsFacts, needs: ConfigNeeds, driver: DriverFacts, plugins: PluginFacts) -> Iterator[Diagnosis]:
    """Yield the line about MPS that the config needs on this node."""
    others, lack = _others(facts), lacks_protocol(needs, driver.kernel)
    if others:
        strays = (*facts.of_others, *_unmanaged(facts, needs))
        also = f"; another listens in {strays[-1]}, without `gpushare mps`" if strays != facts.of_others else ""
        yield wrong(SUBJECT, f"{others}, and a GPU can have one only{also}", _ends_others(facts, plugins, strays))
    if lack:
        yield wrong(
            SUBJECT,
            lack,
            f"upgrade the driver of the node to {FIRST_DRIVER} or newer, or set flags.mpsProtocol to 2 in the config",
        )
    if others or lack:
        return
    if not facts.control and not facts.agent:
        yield _without_program(driver.root)
    elif facts.agent is None:
        yield not_looked_at(SUBJECT, f"{needs.mps_root} cannot be read: run doctor as root")
    elif not facts.agent and not plugins.ours:
        yield not_looked_at(
            SUBJECT,
            f"{_not_served(facts, needs)} before the daemon of gpushare runs: the daemon labels the node, "
            "then the chart starts gpushare mps; set mps.enabled=true of the chart",
        )
    elif not facts.agent:
        yield wrong(SUBJECT, _not_served(facts, needs), _RUN)
    elif facts.not_served:
        yield wrong(
            SUBJECT,
            f"gpushare mps does not serve as desired: {'; '.join(facts.not_served)}",
            "see the log of the pod of `gpushare mps` on this node",
        )
    elif not facts.requested:
        yield not_looked_at(
            SUBJECT,
            f"gpushare mps runs in {needs.mps_root}, and serves no GPU, because the daemon of gpushare has not "
            "requested that; start the daemon with this config, and run doctor again",
        )
    else:
        by = f", by protocol {needs.mps_protocol}" if needs.mps_protocol == WITH_NAMESPACES else ""
        yield right(SUBJECT, f"gpushare mps serves in {needs.mps_root}{by}")


def _unmanaged(facts: MpsFacts, needs: ConfigNeeds) -> tuple[str, ...]:
    """Return our pipe directory where a control daemon listens that `gpushare mps` did not start."""
    return (f"{needs.mps_root}/pipe",) if facts.listening and facts.agent is False else ()


def _without_program(root: str | None) -> Diagnosis:
    """Return the line about a driver below `root` that lacks the MPS control daemon; None for an unknown root."""
    if root is None:
        return not_looked_at(SUBJECT, f"where the driver is, is not known, and so not whether it has {_CONTROL}")
    brings = (
        "install the package of the driver that has it (nvidia-compute-utils-<version>, nvidia-cuda-mps, or "
        "nvidia-driver-cuda)"
    )
    if root == OPERATORS_ROOT:
        brings = (
            "delete the pod nvidia-driver-daemonset on this node (`kubectl delete pod`), whose start installs the "
            "driver of NVIDIA's operator anew"
        )
    found = f"the driver has no {_control_below(root)}, which the config needs"
    return wrong(SUBJECT, found, f"{brings}, or take MPS out of the config")


def _not_served(facts: MpsFacts, needs: ConfigNeeds) -> str:
    """Return what is there instead of `gpushare mps`, in words."""
    if facts.listening:
        return (
            f"an MPS control daemon listens at {needs.mps_root}/pipe/control, but no `gpushare mps` manages GPUs there"
        )
    return f"nothing serves MPS in {needs.mps_root}"


def _quits(facts: MpsFacts, places: Sequence[str]) -> str:
    """Return what ends the MPS control daemons with pipes in `places` by a program of the node, as an instruction."""
    if facts.units:
        stop = f"run `systemctl disable --now {' '.join(dict.fromkeys(facts.units))}`"
        return f"{stop}; where a daemon still listens then, {_quits(replace(facts, units=()), places)}"
    if facts.control:
        each = (f"`echo quit | CUDA_MPS_PIPE_DIRECTORY={place} {facts.control}`" for place in places)
        return f"run {' and '.join(each)}"
    return (
        f"end the process nvidia-cuda-mps-control with the directory {' or '.join(places)} by `kill PID`: "
        "`pgrep -a nvidia-cuda-mps` shows the processes of MPS, and CUDA_MPS_PIPE_DIRECTORY in /proc/PID/environ the "
        "directory of each, as its container sees that"
    )


def _ends_others(facts: MpsFacts, plugins: PluginFacts, places: Sequence[str]) -> str:
    """Return what ends the MPS control daemons with pipes in `places`, as an instruction."""
    quits = _quits(facts, places)
    if facts.of_daemon_set:
        return (
            "turn MPS off in NVIDIA's device plugin (sharing.mps in its config), or delete the DaemonSet that `kubectl "
            f"get daemonsets -A | grep {_DAEMON_SET}` shows, which would start the daemon again. Where a daemon still "
            f"listens then, {quits}"
        )
    if plugins.of_gpus:
        return f"where the MPS control daemon runs on after the item about {OTHERS}, {quits}"
    if plugins.unknown or plugins.ours is None:
        return f"turn MPS off in the other plugin (sharing.mps of NVIDIA's device plugin), or {quits}"
    return quits

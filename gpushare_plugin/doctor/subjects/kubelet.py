"""The kubelet: its sockets, and its checkpoint of allocated devices.

Facts: pkg/kubelet/apis/deviceplugin/v1beta1/constants.go in Kubernetes (`/var/lib/kubelet/device-plugins/kubelet.sock`,
whatever the kubelet's --root-dir is); pkg/kubelet/apis/podresources (`pod-resources/kubelet.sock`, below --root-dir);
pkg/kubelet/cm/devicemanager/plugin/v1beta1/server.go (a kubelet makes its socket for plugins only when it starts). Its
service: docs.k3s.io, docs.rke2.io and docs.k0sproject.io, each on its installation; microk8s.io, "Services and ports"
(kubelite has the kubelet).
"""

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.doctor.node.diagnosis import WITH_RIGHTS, Diagnosis, drained, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.node.sockets import listens
from gpushare_plugin.doctor.subjects.runtimes.distributions import find_distribution
from gpushare_plugin.kubelet.allocations.checkpoint import CheckpointError, read_listed, read_recorded
from gpushare_plugin.kubelet.device_plugin.directory import KUBELET_SOCKET
from gpushare_plugin.kubelet.paths import DEFAULT_PLUGIN_DIRECTORY

DIRECTORY, POD_RESOURCES, CHECKPOINT = "kubelet, device plugins", "kubelet, pod-resources", "kubelet, checkpoint"
PLUGIN_DIRECTORY = str(DEFAULT_PLUGIN_DIRECTORY)
_PREPARED = "dra_manager_state"
"""The file of claims that the kubelet has prepared; pkg/kubelet/cm/dra fails with one that cannot be read."""
_K0S = "/var/lib/k0s/kubelet/pod-resources/kubelet.sock"
_NO_KUBELET = (
    "/var/lib/kubelet is empty or not there: no kubelet has run on this machine, or the root of the node is elsewhere"
)
_SERVICES = {
    "K3s": ("k3s", "k3s-agent"),
    "RKE2": ("rke2-server", "rke2-agent"),
    "k0s": ("k0scontroller", "k0sworker"),
    "MicroK8s": ("snap.microk8s.daemon-kubelite",),
}
"""The services of systemd that have the kubelet of a distribution; the second on a node without control plane."""
ROOT_DIRECTORY = (
    "if the --root-dir of the kubelet is not /var/lib/kubelet, give that directory to the chart as kubeletRootDir, and "
    "the socket below it to doctor with --pod-resources-socket"
)
"""What to do where the kubelet has another root directory, as an instruction."""


class KubeletFacts(Struct, frozen=True):
    """What the node shows of its kubelet."""

    directory: bool
    """Whether the plugin directory is there."""
    device_plugins: bool | None
    """Whether the kubelet listens for device plugins; None where that cannot be seen."""
    pod_resources: bool | None
    """Whether the kubelet answers pod-resources; None where that cannot be seen."""
    pod_resources_socket: str
    """Where the pod-resources socket is looked for, a path of the node."""
    distribution: str = ""
    """The Kubernetes distribution that brings the kubelet, such as `K3s`; empty for a kubelet of the node."""
    listed: tuple[tuple[str, int], ...] = ()
    """The resources in the checkpoint, with the number of healthy devices."""
    held: int = 0
    """The devices that containers hold, by the checkpoint."""
    torn: str = ""
    """The file of prepared claims, a path of the node, if no kubelet can read the file; empty otherwise."""
    failure: str = ""
    """Why the checkpoint cannot be read, with the path of the node; empty without a problem."""


def read_kubelet(host: HostRoot, needs: ConfigNeeds) -> KubeletFacts:
    """Return what the node shows of its kubelet."""
    named = needs.pod_resources_socket
    pod_resources = named if host.is_socket(named) or not host.is_socket(_K0S) else _K0S
    where = find_distribution(host)
    facts = KubeletFacts(
        directory=host.is_directory(PLUGIN_DIRECTORY),
        device_plugins=listens(host, f"{PLUGIN_DIRECTORY}/{KUBELET_SOCKET}"),
        pod_resources=listens(host, pod_resources),
        pod_resources_socket=pod_resources,
        distribution=where.name if where else "",
        torn=_torn(host, f"{PurePosixPath(pod_resources).parent.parent}/{_PREPARED}"),
    )
    if not facts.directory:
        return facts
    directory = host.resolved(PLUGIN_DIRECTORY)
    try:
        listed, recorded = read_listed(directory), read_recorded(directory)
    except CheckpointError as error:
        host.note(PLUGIN_DIRECTORY, error.__cause__)
        return replace(facts, failure=str(error).replace(str(directory), PLUGIN_DIRECTORY))
    names = [resource for resource, _ in listed]
    counts = tuple((name, names.count(name)) for name in sorted(set(names)))
    return replace(facts, listed=counts, held=sum(len(holding.ids) for holding in recorded))


def _torn(host: HostRoot, file: str) -> str:
    """Return `file` if it is there and no JSON; empty otherwise."""
    try:
        content = host.text(file)
        json.loads(content or "" if content is not None else "{}")
    except UnreadableError:
        return ""
    except (ValueError, RecursionError):
        return file
    return ""


def with_service(facts: KubeletFacts, command: str) -> str:
    """Return a command about the service of the kubelet, such as `systemctl start`, as an instruction."""
    services = _SERVICES.get(facts.distribution, ("kubelet",))
    agents = [f" (on a node without control plane `{command} {service}`)" for service in services[1:]]
    return "".join((f"`{command} {services[0]}`", *agents))


def _starts(facts: KubeletFacts) -> str:
    # The service of a distribution starts the container runtime, too.
    after = "" if facts.distribution else ", after the container runtime is up"
    return (
        f"run {with_service(facts, 'systemctl start')}{after}; if the kubelet stops again, see "
        f"{with_service(facts, 'journalctl -u')}"
    )


def judge_kubelet(facts: KubeletFacts, host: HostRoot, node: str) -> Iterator[Diagnosis]:
    """Yield the lines about the kubelet; `node` is the name of the node, for commands."""
    above = str(Path(PLUGIN_DIRECTORY).parent)
    if not host.names(above):
        reason = f"may not read {above}. {WITH_RIGHTS}" if above in host.refused else _NO_KUBELET
        yield from (not_looked_at(subject, reason) for subject in (DIRECTORY, POD_RESOURCES, CHECKPOINT))
        return
    if facts.torn and facts.device_plugins is False:
        yield _writes_anew(facts, facts.torn, f"{facts.torn} is no JSON, and with such a file no kubelet starts", node)
    restart = with_service(facts, "systemctl restart")
    yield _socket(
        DIRECTORY,
        f"{PLUGIN_DIRECTORY}/{KUBELET_SOCKET}",
        f"the kubelet runs, but its plugin socket is gone: run {restart}" if facts.pod_resources else _starts(facts),
        listening=facts.device_plugins,
    )
    yield _socket(
        POD_RESOURCES,
        facts.pod_resources_socket,
        _without_pod_resources(facts, restart),
        listening=facts.pod_resources,
    )
    if facts.failure:
        yield _writes_anew(facts, f"kubelet_internal_checkpoint in {PLUGIN_DIRECTORY}", facts.failure, node)
    elif facts.listed or facts.held:
        resources = ", ".join(f"{name} ({count} healthy)" for name, count in facts.listed) or "none"
        yield right(CHECKPOINT, f"resources: {resources}; {facts.held} devices in use")
    else:
        yield right(CHECKPOINT, "no device is listed or in use")


def _writes_anew(facts: KubeletFacts, file: str, found: str, node: str) -> Diagnosis:
    """Return the line about a file of the kubelet that the kubelet writes anew where the file is missing."""
    return wrong(
        CHECKPOINT,
        found,
        drained(
            node,
            f"run {with_service(facts, 'systemctl stop')}, remove {file}, and run "
            f"{with_service(facts, 'systemctl start')}: the kubelet then writes the file anew",
        ),
    )


def _without_pod_resources(facts: KubeletFacts, restart: str) -> str:
    """Return what to do where nothing listens for pod-resources; `restart` restarts the kubelet."""
    if facts.device_plugins:
        return f"the kubelet runs, but not with this socket: {ROOT_DIRECTORY}; otherwise run {restart}"
    if facts.device_plugins is None:
        return f"{_starts(facts)}; {ROOT_DIRECTORY}"
    return f"do what is said of {DIRECTORY}; {ROOT_DIRECTORY}"


def _socket(subject: str, path: str, remedy: str, *, listening: bool | None) -> Diagnosis:
    if listening is None:
        return not_looked_at(subject, f"{path} cannot be reached by this process: run doctor as root")
    if not listening:
        return wrong(subject, f"nothing listens at {path}", remedy)
    return right(subject, f"the kubelet listens at {path}")

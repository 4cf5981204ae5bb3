"""GPUs by claim: whether the kubelet and the DRA driver of gpushare can meet, and the files that the driver keeps.

Facts of Kubernetes: pkg/features/kube_features.go (DynamicResourceAllocation is on from 1.34 on, and cannot be turned
off from 1.35 on; DRAConsumableCapacity, without which a claim gets no share, is on from 1.36 on);
pkg/kubelet/pluginmanager (the kubelet looks for sockets in `plugins_registry` below its root
directory, which it makes when it starts). Claims reach containers by CDI only: pkg/kubelet/cm/dra/manager.go,
`GetResources`. NVIDIA's DRA driver is gpu.nvidia.com, and its chart has `resources.gpus.enabled`
(kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin and deployments/helm).
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, one_of, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.node.packages import is_at_least, package_version
from gpushare_plugin.doctor.node.sockets import listens
from gpushare_plugin.doctor.subjects.feature_gates import turned_off_in, turned_on
from gpushare_plugin.doctor.subjects.kubelet import PLUGIN_DIRECTORY, ROOT_DIRECTORY, KubeletFacts, with_service
from gpushare_plugin.doctor.subjects.plugins import PluginFacts
from gpushare_plugin.kubelet.claim_files import (
    CLAIM_RECORDS,
    GIVEN_BY_CLAIM,
    GIVEN_COPIES,
    GIVEN_VERSION,
    LARGEST_CLAIM_FILE,
    RECORD_VERSION,
    version_of,
)
from gpushare_plugin.kubelet.dra_plugin.sockets import PLUGINS, REGISTRY

SUBJECT = "GPUs by claim"
_OF_NVIDIA = "gpu.nvidia.com"
"""The name of NVIDIA's DRA driver."""
_FIRST_KUBERNETES, _FIRST_WITH_SHARES = (1, 34), (1, 36)
_KUBELET_CONFIG = "config.yaml"
_GATE, _GATE_OF_SHARES = "DynamicResourceAllocation", "DRAConsumableCapacity"
_WITHOUT_CLAIMS = "remove the section dra from the config, so that the device plugin offers the GPUs"
_FOR_SHARES = f"Kubernetes 1.36 or newer, or 1.34 with the feature gate {_GATE_OF_SHARES}"
"""What shares by claim need."""
_MOST_RECORDS = 256
"""The most records that are looked at."""
_FILES_TO_SHOW = 3


class ClaimFacts(Struct, frozen=True):
    """What the node shows of GPUs by claim; of gpushare nothing is read where the config gives none."""

    root: str = ""
    """The root directory of the kubelet, a path of the node."""
    kubelet: str = ""
    """The version of the kubelet's package; empty if not known."""
    gate_off: tuple[str, ...] = ()
    """The settings that turn dynamic resource allocation off in the kubelet, each with its file."""
    shares_on: bool = False
    """Whether a setting of the kubelet turns the feature gate of shares on."""
    shares_off: tuple[str, ...] = ()
    """The settings that turn the feature gate of shares off in the kubelet, each with its file."""
    registry: bool = False
    """Whether the directory is there in which the kubelet looks for DRA drivers."""
    registers: bool | None = False
    """Whether the DRA driver listens where the kubelet registers it; None where that cannot be seen."""
    prepares: bool | None = False
    """Whether the DRA driver listens where the kubelet calls it for claims; None where that cannot be seen."""
    records: int = 0
    """The records of prepared claims."""
    newer: tuple[str, ...] = ()
    """The files of a newer version of gpushare."""
    damaged: tuple[str, ...] = ()
    """The files that cannot be used, each with the reason."""
    of_nvidia: bool = False
    """Whether NVIDIA's DRA driver listens, too."""


def read_claims(host: HostRoot, needs: ConfigNeeds, kubelet: KubeletFacts) -> ClaimFacts:
    """Return what the node shows of the DRA driver that the config names."""
    root = str(PurePosixPath(kubelet.pod_resources_socket).parent.parent)
    registry, driver = f"{root}/{REGISTRY}", f"{root}/{PLUGINS}/{needs.dra}"
    of_nvidia = needs.dra != _OF_NVIDIA and _any_listens(host, f"{registry}/{_OF_NVIDIA}*-reg.sock") is True
    if needs.dra is None:
        return ClaimFacts(root, of_nvidia=of_nvidia)
    records = tuple(host.matching(f"{driver}/{CLAIM_RECORDS}/*.json"))[:_MOST_RECORDS]
    given = (f"{driver}/{GIVEN_BY_CLAIM}", f"{PLUGIN_DIRECTORY}/{GIVEN_COPIES}/{needs.dra}/{GIVEN_BY_CLAIM}")
    looks = [_FileLook(host, path, GIVEN_VERSION) for path in given]
    looks += [_FileLook(host, path, RECORD_VERSION) for path in records]
    config = f"{root}/{_KUBELET_CONFIG}"
    return ClaimFacts(
        root=root,
        kubelet=package_version(host, "kubelet"),
        gate_off=turned_off_in(host, _GATE, config, kubelet.distribution),
        shares_on=turned_on(host, _GATE_OF_SHARES, config, kubelet.distribution),
        shares_off=turned_off_in(host, _GATE_OF_SHARES, config, kubelet.distribution),
        registry=host.is_directory(registry),
        registers=_any_listens(host, f"{registry}/{needs.dra}~*-reg.sock"),
        prepares=_any_listens(host, f"{driver}/dra~*.sock"),
        records=len(records),
        newer=tuple(look.path for look in looks if look.newer),
        damaged=tuple(f"{look.path}: {look.trouble}" for look in looks if look.trouble),
        of_nvidia=of_nvidia,
    )


class _FileLook:
    """A look at a file of claims: whether this version of gpushare can use the file."""

    def __init__(self, host: HostRoot, path: str, newest: int) -> None:
        self.path, self.newer, self.trouble = path, False, ""
        try:
            content = host.text(path, LARGEST_CLAIM_FILE)
            self.newer = content is not None and version_of(content.encode()) > newest
        except UnreadableError as error:
            self.trouble = str(error).removeprefix(f"{path} ")
        except ValueError:
            self.trouble = "no JSON of gpushare"


def _any_listens(host: HostRoot, pattern: str) -> bool | None:
    """Return whether a program listens at a socket; None where this process may not ask."""
    answers = [listens(host, path) for path in host.matching(pattern)]
    return True if True in answers else None if None in answers else False


def judge_claims(
    facts: ClaimFacts, needs: ConfigNeeds, kubelet: KubeletFacts, plugins: PluginFacts
) -> Iterator[Diagnosis]:
    """Yield the lines about GPUs by claim; `plugins` says whether the daemon of gpushare runs."""
    if facts.of_nvidia:
        yield _of_nvidia(facts)
    if needs.dra is None:
        yield not_looked_at(SUBJECT, "the config gives no GPU by claim: it has no section dra")
        return
    mistakes = list(_of_files(facts))
    yield from mistakes
    if not mistakes and not any(judge_kubernetes(facts, needs, kubelet)):
        yield _driver(facts, needs.dra, kubelet, plugins)


def _of_nvidia(facts: ClaimFacts) -> Diagnosis:
    """Return the line about NVIDIA's DRA driver."""
    return wrong(
        SUBJECT,
        f"NVIDIA's DRA driver {_OF_NVIDIA} listens in {facts.root}/{REGISTRY}, too: both drivers give the same GPUs to "
        "pods, and neither knows of the other's pods",
        f"end the pods of this node that have a claim on a device of {_OF_NVIDIA}, and turn the GPUs of that driver "
        "off (resources.gpus.enabled=false in the values of its chart), or keep its kubelet plugin off this node by "
        "the nodeSelector or affinity of its DaemonSet",
    )


def judge_kubernetes(facts: ClaimFacts, needs: ConfigNeeds, kubelet: KubeletFacts) -> Iterator[Diagnosis]:
    """Yield the line about a kubelet that cannot give GPUs by claim, which the config may then give up."""
    if facts.kubelet and not is_at_least(facts.kubelet, *_FIRST_KUBERNETES):
        needed = _FOR_SHARES if needs.dra_shares else "Kubernetes 1.34 or newer"
        yield wrong(
            SUBJECT,
            f"the kubelet has version {facts.kubelet}, and GPUs by claim need {needed}",
            one_of(f"upgrade the cluster, the kubelet of this node included, to {needed}", _WITHOUT_CLAIMS),
        )
    elif facts.gate_off:
        yield wrong(
            SUBJECT,
            f"{_turn_off(facts.gate_off, _GATE)}, so the kubelet knows no DRA driver",
            f"remove {_GATE} from {' and from '.join(facts.gate_off)} and run {_restarts(facts.gate_off, kubelet)}",
        )
    elif needs.dra_shares and not facts.shares_on:
        yield from _without_shares(facts, kubelet)


def _turn_off(settings: Sequence[str], gate: str) -> str:
    turns = "turn" if len(settings) > 1 else "turns"
    return f"{' and '.join(settings)} {turns} the feature gate {gate} off"


def _restarts(settings: Sequence[str], kubelet: KubeletFacts) -> str:
    """Return the command after which the kubelet reads changed settings, as an instruction."""
    of_unit = any(".service" in setting for setting in settings)
    return with_service(kubelet, "systemctl daemon-reload && systemctl restart" if of_unit else "systemctl restart")


def _without_shares(facts: ClaimFacts, kubelet: KubeletFacts) -> Iterator[Diagnosis]:
    """Yield the line about a kubelet that gives whole GPUs by claim, and no shares."""
    by_default = is_at_least(facts.kubelet, *_FIRST_WITH_SHARES)
    if facts.shares_off:
        found = _turn_off(facts.shares_off, _GATE_OF_SHARES)
    elif facts.kubelet and not by_default:
        found = f"the kubelet has version {facts.kubelet}, and no setting turns the feature gate {_GATE_OF_SHARES} on"
    else:
        return
    where = " and in ".join(facts.shares_off) or f"featureGates of {facts.root}/{_KUBELET_CONFIG}"
    restart = _restarts(facts.shares_off, kubelet)
    turns_on = (
        f"set {_GATE_OF_SHARES} to true in {where}, run {restart}, and turn the gate on in API server, "
        "kube-controller-manager and kube-scheduler, too, where it is off"
    )
    upgrade = () if by_default or facts.shares_off else ("upgrade the cluster to Kubernetes 1.36 or newer",)
    yield wrong(
        SUBJECT,
        f"{found}, but the config gives shares of GPUs by claim, which need {_FOR_SHARES} in kubelet and control plane",
        one_of(turns_on, *upgrade, _WITHOUT_CLAIMS),
    )


def _of_files(facts: ClaimFacts) -> Iterator[Diagnosis]:
    """Yield the line about files that a newer version of gpushare wrote."""
    if facts.newer:
        yield wrong(
            SUBJECT,
            f"a newer version of gpushare wrote {some_of(facts.newer, _FILES_TO_SHOW)}, so the GPUs of these claims "
            "stay away from the device plugin and from other claims",
            "go back to the newer version of gpushare, or end the pods with claims of this node and then remove the "
            "files (docs/claims.md, When it is not known which GPUs have claims)",
        )


def _driver(facts: ClaimFacts, driver: str, kubelet: KubeletFacts, plugins: PluginFacts) -> Diagnosis:
    """Return the line about the DRA driver and the directory in which the kubelet looks for it."""
    registry = f"{facts.root}/{REGISTRY}"
    if not (kubelet.device_plugins and kubelet.pod_resources):
        return not_looked_at(SUBJECT, "mend the lines about the kubelet first, with which DRA drivers register")
    if not facts.registry:
        return wrong(
            SUBJECT,
            f"{registry} is not there, in which a kubelet looks for DRA drivers",
            f"{ROOT_DIRECTORY}; otherwise run {with_service(kubelet, 'systemctl restart')}: a kubelet that starts "
            "makes the directory",
        )
    if facts.damaged:
        return not_looked_at(
            SUBJECT,
            f"{some_of(facts.damaged, _FILES_TO_SHOW)}; the daemon writes such files anew within some minutes while it "
            "runs (docs/claims.md, When it is not known which GPUs have claims): run doctor again then",
        )
    if not plugins.ours:
        reason = f"the DRA driver {driver} registers once the daemon of gpushare runs{_unknown_version(facts)}"
        return not_looked_at(SUBJECT, reason)
    return _sockets(facts, driver)


def _unknown_version(facts: ClaimFacts) -> str:
    """Return the words for a kubelet that is not of a package known here, as that of K3s."""
    if facts.kubelet:
        return ""
    return f"; version of the kubelet not known (GPUs by claim need Kubernetes 1.34 or newer, shares {_FOR_SHARES})"


def _sockets(facts: ClaimFacts, driver: str) -> Diagnosis:
    """Return the line about the sockets of the DRA driver while the daemon runs."""
    registry = f"{facts.root}/{REGISTRY}"
    sockets = {
        f"{registry}/{driver}~*-reg.sock": facts.registers,
        f"{facts.root}/{PLUGINS}/{driver}/dra~*.sock": facts.prepares,
    }
    silent = [place for place, listening in sockets.items() if listening is False]
    if not silent and None in sockets.values():
        return not_looked_at(SUBJECT, f"{' and '.join(sockets)} cannot be reached by this process: run doctor as root")
    if silent:
        return wrong(
            SUBJECT,
            f"the daemon of gpushare runs, and no DRA driver listens at {' and '.join(silent)}, so no pod gets a GPU "
            "by claim",
            f"set dra.enabled=true and dra.driver={driver} in the values of the chart; without the chart, give the "
            f"daemon --node-name and --kubelet-root {facts.root}. If both are so, claims_unavailable in the log of the "
            "daemon says what is missing",
        )
    claims = f"prepared claims: {facts.records}{_unknown_version(facts)}"
    return right(SUBJECT, f"the DRA driver {driver} listens in {registry}; {claims}")

"""Judges the container runtime of a node: whether containers get their GPUs as the config says.

Facts: the kubelet's `containerRuntimeEndpoint`, and kubeadm-flags.env and instance-config.yaml of kubeadm, in
Kubernetes' documentation; with NRI, NVIDIA's operator leaves the runtime's configuration alone (NVIDIA/gpu-operator,
controllers/object_controls.go, `transformForRuntime`). The kubelet and the container runtime need the same driver of
control groups (kubernetes.io, "Container Runtimes"; `SystemdCgroup` there).
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from gpushare_plugin.base.structs import replace
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, one_of, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import ConfigNeeds, by_cdi
from gpushare_plugin.doctor.subjects.runtimes.containerd import read_containerd
from gpushare_plugin.doctor.subjects.runtimes.crio import read_crio
from gpushare_plugin.doctor.subjects.runtimes.distributions import RANCHERS_SOCKET, TEMPLATES
from gpushare_plugin.doctor.subjects.runtimes.docker import read_docker
from gpushare_plugin.doctor.subjects.runtimes.runtime import (
    NVIDIAS_RUNTIME,
    OF_BOOT,
    OPERATORS_POD,
    RuntimeFacts,
    is_of_boot,
)
from gpushare_plugin.gpus.cdi.roots import OPERATORS_TOOLKIT

RUNTIME, HANDLER, CDI = "container runtime", "NVIDIA's runtime", "CDI in the container runtime"
_WITHOUT_RUNTIME = (
    "no configuration and no socket of containerd, CRI-O or cri-dockerd was found; in a pod, mount the root of the "
    "node and name its place with --root"
)
_RANCHER_ELSEWHERE = (
    f"the containerd of K3s or RKE2 has the socket {RANCHERS_SOCKET}, but its configuration is not found: write the "
    "data-dir into /etc/rancher/k3s/config.yaml or /etc/rancher/rke2/config.yaml, and run doctor again"
)
_READERS: dict[str, Callable[[HostRoot], RuntimeFacts | None]] = {
    "dockerd": read_docker,
    "crio": read_crio,
    "containerd": read_containerd,
}
"""The reader of each runtime, by a part of the path of the runtime's socket."""
_VERSIONS_UNKNOWN = {"", "2.x"}
"""What is said of a version that no package shows."""
_BY_SYSTEMD = re.compile(r"^cgroupDriver:\s*[\"']?systemd\b", re.MULTILINE)
_ENDPOINT = re.compile(r"(?:container-runtime-endpoint=|containerRuntimeEndpoint:\s*)[\"']?([^\s\"']+)")


class OperatorState(NamedTuple):
    """What the handlers depend on of NVIDIA's operator."""

    runs: bool | None = False
    """Whether the operator runs pods on this node; None where the node does not show pods."""
    installs_toolkit: bool = False
    """Whether the operator installs the toolkit, and so decides on the handlers."""


def why_without(host: HostRoot) -> str:
    """Return why no container runtime was found."""
    return _RANCHER_ELSEWHERE if host.exists(RANCHERS_SOCKET) else _WITHOUT_RUNTIME


def read_runtime(host: HostRoot) -> RuntimeFacts | None:
    """Return what the configuration of the kubelet's container runtime says; None if no runtime was found.

    Where the kubelet's own files do not name the runtime, Docker comes first, since it brings a containerd.
    """
    endpoint = _endpoint(host)
    named = [read for name, read in _READERS.items() if name in endpoint]
    runtime = next(filter(None, (read(host) for read in named or _READERS.values())), None)
    return runtime and replace(runtime, gone=tuple(_gone(host, runtime)))


def _gone(host: HostRoot, runtime: RuntimeFacts) -> Iterator[str]:
    """Yield the handlers of NVIDIA's runtime without a program; a hook of CRI-O is no handler with a program."""
    for name, program in runtime.nvidia.items():
        if not name.startswith("/") and not host.has_program(program):
            yield name


def _endpoint(host: HostRoot) -> str:
    """Return the socket of the container runtime that the kubelet's files name; empty where none does."""
    for name in ("kubeadm-flags.env", "instance-config.yaml", "config.yaml"):
        if found := _ENDPOINT.search(host.line(f"/var/lib/kubelet/{name}")):
            return found[1]
    return ""


def judge_runtime(runtime: RuntimeFacts) -> Iterator[Diagnosis]:
    """Yield the lines about the container runtime itself, without which no pod starts."""
    if runtime.defects:
        yield from (wrong(RUNTIME, *defect) for defect in runtime.defects)
    else:
        of_version = f" {runtime.version}" if runtime.version else ", version unknown"
        files = f"which reads {', '.join(runtime.files)}" if runtime.files else "without a configuration file"
        yield right(RUNTIME, ". ".join((f"{runtime.name}{of_version}, {files}", *runtime.notes)))


def judge_handlers(
    runtime: RuntimeFacts, host: HostRoot, needs: ConfigNeeds, operator: OperatorState
) -> Iterator[Diagnosis]:
    """Yield the lines about what of the container runtime gives GPUs to containers: handlers, and CDI."""
    yield from _handlers(runtime, host, needs, operator)
    yield _cdi(runtime, needs)


def _handlers(
    runtime: RuntimeFacts, host: HostRoot, needs: ConfigNeeds, operator: OperatorState
) -> Iterator[Diagnosis]:
    """Yield the lines about NVIDIA's runtime among the handlers."""
    if runtime.misplaced:
        yield _misplaced(runtime)
    elif not runtime.nvidia:
        yield _without_handler(runtime, needs, by_operator=operator.installs_toolkit)
    if runtime.gone:
        gone = {name: runtime.nvidia[name] for name in runtime.gone}
        yield _without_program(runtime, host, gone, needs, operator)
    elif runtime.without_systemd and _BY_SYSTEMD.search(host.line("/var/lib/kubelet/config.yaml")):
        yield _without_systemd(runtime, by_operator=operator.installs_toolkit)
    elif runtime.nvidia:
        yield right(HANDLER, f"{_in_words(runtime)}; {_who_gets_it(runtime, needs)}")


def _without_systemd(runtime: RuntimeFacts, *, by_operator: bool) -> Diagnosis:
    """Return the line about handlers whose containers are not in the control groups of their pods."""
    names = " and ".join(runtime.without_systemd)
    files = dict.fromkeys(runtime.handler_files[name] for name in runtime.without_systemd)
    places = ", ".join(runtime.edited.get(file, file) for file in files)
    return wrong(
        HANDLER,
        f"handler {names} lacks SystemdCgroup = true, which runc has, and the kubelet has cgroupDriver systemd: "
        "containers of the handler are not in the control groups of their pods, and no limit of CPU and memory holds",
        f"delete the pod {OPERATORS_POD} on this node (`kubectl delete pod`), whose start writes the handlers anew, "
        "like that of runc"
        if by_operator
        else f"set SystemdCgroup = true in the options of the handler in {places}, and run {runtime.service}; then "
        "restart the pods of this handler",
    )


def _misplaced(runtime: RuntimeFacts) -> Diagnosis:
    """Return the line about handlers that have no effect where they are written."""
    which = "1.x does" if runtime.version.startswith("1.") else "2.0 to 2.2 do"
    found = f"containerd {which} not see where it is written: {'; '.join(runtime.misplaced)}"
    move = f"move the handler there{f' in {runtime.edited_files}' if runtime.generated else ''}"
    if runtime.version in _VERSIONS_UNKNOWN:
        return not_looked_at(HANDLER, f"{found}; the version is not known here. To be sure, {move}")
    return wrong(HANDLER, found, f"{move} and run {runtime.service}, or {runtime.adds_nvidia}")


def _without_program(
    runtime: RuntimeFacts, host: HostRoot, gone: Mapping[str, str], needs: ConfigNeeds, operator: OperatorState
) -> Diagnosis:
    """Return the line about handlers whose programs are `gone`."""
    found = "; ".join(f"handler {name} runs {program}, which is not there" for name, program in gone.items())
    remove = _removes(runtime, host, gone)
    install = "install NVIDIA's container toolkit (package nvidia-container-toolkit)"
    if runtime.generated or host.exists(f"/usr/bin/{NVIDIAS_RUNTIME}"):
        install = runtime.adds_nvidia
    elif not all(program.startswith("/usr/bin/") for program in gone.values()):
        install = f"{install}, and {runtime.adds_nvidia}"
    if any(program.startswith(OPERATORS_TOOLKIT) for program in gone.values()):
        log = f"see the log of its pod {OPERATORS_POD} on this node"
        of_daemon = ", unless the daemon gets the GPUs without a handler (docs/cdi.md, The daemon's own GPUs)"
        without = f"{remove}. Then {install}{'' if needs.runtime else of_daemon}"
        if operator.runs is None:
            ways = (f"where NVIDIA's operator runs, {log}", f"where the operator is gone, {without}")
            return wrong(HANDLER, found, one_of(*ways))
        return wrong(HANDLER, found, f"NVIDIA's operator installs these programs: {log}" if operator.runs else without)
    return wrong(HANDLER, found, install if needs.runtime else one_of(install, remove))


def _removes(runtime: RuntimeFacts, host: HostRoot, gone: Mapping[str, str]) -> str:
    """Return what removes handlers whose programs are `gone`, as an instruction."""
    made = list(dict.fromkeys(file for name in gone if (file := runtime.handler_files[name]) in runtime.edited))
    places = list(dict.fromkeys(file for name in gone if (file := runtime.handler_files[name]) not in made))
    handlers = "these handlers" if len(gone) > 1 else "the handler"
    steps = [f"remove {handlers} from {', '.join(places)}"] if places else []
    templates = _templates(host, made, gone.values())
    if names := ", ".join(templates):
        steps.append(f"remove {handlers} from {names}, of which each start makes {', '.join(made)}")
    if runtime.default in gone and runtime.default_setting and (places or templates):
        others = [name for name in runtime.handlers if name not in gone]
        steps.append(f"set {runtime.default_setting} to {' or '.join(others)}")
    if steps:
        return f"{', '.join(steps)}{',' if templates or len(steps) > 1 else ''} and run {runtime.service}"
    return (
        f"run {runtime.service}: each start makes {', '.join(made)} anew, without handlers whose programs are missing"
    )


def _templates(host: HostRoot, places: Sequence[str], programs: Collection[str]) -> list[str]:
    """Return the templates beside configuration files that name any of the programs."""
    beside = (f"{place.rpartition('/')[0]}/{name}" for place in places for name in TEMPLATES)
    return [each for each in beside if any(program in host.line(each) for program in programs)]


def _without_handler(runtime: RuntimeFacts, needs: ConfigNeeds, *, by_operator: bool) -> Diagnosis:
    if runtime.unread:
        return _not_known(HANDLER, runtime)
    found = f"{runtime.name} has no handler for it (handlers: {', '.join(runtime.handlers)})"
    if not needs.runtime:
        of_daemon = (
            "doctor does not see whether the daemon's own pod gets the GPUs (docs/cdi.md, The daemon's own GPUs)"
        )
        return not_looked_at(HANDLER, f"{found}, and pods need none, since the config gives GPUs by CDI; {of_daemon}")
    asked = "NVIDIA_VISIBLE_DEVICES" if "envvar" in needs.strategies else "mounts that name its GPU"
    adds = _instead_of_nri(runtime, needs) if by_operator else runtime.adds_nvidia
    first = f"mend what is wrong with the {RUNTIME} first, and run doctor again. If this line is still wrong then, "
    return wrong(
        HANDLER,
        f"{found}, so a pod gets {asked}, but no runtime acts on that: the pod sees no GPU",
        f"{first}{adds}" if runtime.defects else adds,
    )


def _not_known(subject: str, runtime: RuntimeFacts) -> Diagnosis:
    """Return the line about a setting that may be in a file which was not understood."""
    files = ", ".join(runtime.unread)
    return not_looked_at(subject, f"{files} may decide this; mend what is wrong with the {RUNTIME} first")


def _instead_of_nri(runtime: RuntimeFacts, needs: ConfigNeeds) -> str:
    """Return what to do where NVIDIA's operator leaves the runtime alone, as an instruction."""
    return one_of(
        f"{by_cdi(needs, runtime.cdi_to_enable)}. Besides, give the daemon itself the GPUs, as docs/cdi.md says in The "
        "daemon's own GPUs",
        "set cdi.nriPluginEnabled=false in the operator, which then configures the container runtime",
    )


def _in_words(runtime: RuntimeFacts) -> str:
    runs = (name if name.startswith("/") else f"{name} runs {program}" for name, program in runtime.nvidia.items())
    files = dict.fromkeys(file for name, file in runtime.handler_files.items() if name in runtime.nvidia)
    return ", ".join((*runs, *([f"by {' and '.join(files)}"] if files else ())))


def _who_gets_it(runtime: RuntimeFacts, needs: ConfigNeeds) -> str:
    if runtime.default in runtime.nvidia:
        return "every pod gets it"
    of_class = f"a runtime class with that handler, such as runtimeClassName {_usual(tuple(runtime.nvidia))}"
    if not needs.runtime:
        return f"only the daemon uses it, by {of_class}; pods get their GPUs by CDI"
    return f"a pod needs {of_class}"


def _usual(handlers: Sequence[str]) -> str:
    return "nvidia" if "nvidia" in handlers else handlers[0]


def _cdi(runtime: RuntimeFacts, needs: ConfigNeeds) -> Diagnosis:
    if runtime.unread:
        return _not_known(CDI, runtime)
    if runtime.cdi and needs.dra and not any(map(is_of_boot, runtime.cdi_directories)):
        return wrong(
            CDI,
            f"on, specifications in {' and '.join(runtime.cdi_directories)}, but those of claims are in {OF_BOOT}",
            f"add {OF_BOOT} to the directories of specifications (cdi_spec_dirs, cdi-spec-dirs) in "
            f"{runtime.edited_files}, where one of these files sets them, and run {runtime.service}",
        )
    if runtime.cdi:
        return right(CDI, f"on, specifications in {' and '.join(runtime.cdi_directories)}")
    if not needs.cdi and not needs.dra:
        return right(CDI, f"{'off' if runtime.cdi is False else 'not known'}; the config does not use CDI")
    if runtime.cdi is None:
        return not_looked_at(
            CDI,
            f"the version of {runtime.name} decides, and is not known; to be sure, {runtime.enables_cdi}",
        )
    return wrong(
        CDI,
        f"off, but the config {_user_of_cdi(needs)}, so containers get none",
        runtime.enables_cdi,
    )


def _user_of_cdi(needs: ConfigNeeds) -> str:
    """Return by what the config needs CDI, in words."""
    if needs.cdi:
        return f"names GPUs by CDI (deviceListStrategy {', '.join(needs.strategies)})"
    return "gives GPUs by claim (section dra), and these come by CDI only"

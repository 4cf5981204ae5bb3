"""The examination of a node: every part is read, and then judged by what the config needs of the node.

No program of the node is run, no file is written, and no service is asked; sockets are connected to, without a word.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path

from gpushare_plugin.base.text import some_of
from gpushare_plugin.base.version import __version__
from gpushare_plugin.doctor.node.choice import EntryChoice, in_any_case, names_of
from gpushare_plugin.doctor.node.diagnosis import WITH_RIGHTS, Diagnosis, not_looked_at, right
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import CONFIG, ConfigNeeds, judged_by, unfit
from gpushare_plugin.doctor.subjects import (
    accounting,
    cdi,
    cgroups,
    claims,
    driver,
    driver_limits,
    hami_core,
    kubelet,
    mps,
    nvml,
    operator,
    plugins,
    rights,
    toolkit,
)
from gpushare_plugin.doctor.subjects import cards as pci
from gpushare_plugin.doctor.subjects.runtimes import judgement as runtimes
from gpushare_plugin.doctor.subjects.runtimes.runtime import RuntimeFacts
from gpushare_plugin.gpus.source import GpuSource
from gpushare_plugin.observe.parts import Part

_PATHS_TO_SHOW = 2
_NEEDS_MPS, _NEEDS_HAMI_CORE = attrgetter("needs_mps"), attrgetter("needs_hami_core")
_SUBJECTS_OF_RUNTIME = (runtimes.RUNTIME, runtimes.HANDLER, runtimes.CDI)
_SUBJECTS_OF_TOOLKIT = (toolkit.VERSION, toolkit.SETTINGS)
_SUBJECTS_OF_FILES = (
    operator.SUBJECT,
    runtimes.HANDLER,
    runtimes.CDI,
    *_SUBJECTS_OF_TOOLKIT,
    cdi.SUBJECT,
)
"""The parts of a node with GPUs and a container runtime that only its own files show."""
_SUBJECTS_OF_GPUS = (
    runtimes.RUNTIME,
    driver.KERNEL_MODULE,
    driver.LIBRARIES,
    nvml.SUBJECT,
    *_SUBJECTS_OF_FILES,
    mps.SUBJECT,
    claims.SUBJECT,
)
"""The parts of a node that matter only with a GPU."""


class Facts(Part, frozen=True, kw_only=True):
    """What was read of the node, as far as gpushare understands it."""

    needs: ConfigNeeds
    """What the config needs of the node."""
    cards: tuple[pci.PciGpu, ...] | None
    """The GPUs on the PCI bus."""
    driver: driver.DriverFacts
    """NVIDIA's driver."""
    nvml: nvml.NvmlFacts | None
    """The answer of NVML; None on a machine without GPUs, where NVML is not asked."""
    runtime: RuntimeFacts | None
    """The container runtime."""
    toolkit: toolkit.ToolkitFacts
    """NVIDIA's container toolkit."""
    cdi: cdi.CdiFacts
    """The CDI specifications."""
    cgroups: cgroups.CgroupFacts
    """The control groups."""
    accounting: accounting.Accounting
    """The setting of the driver's accounting of memory."""
    limit_agent: driver_limits.AgentFacts
    """The agent that sets driver limits."""
    mps: mps.MpsFacts
    """CUDA MPS."""
    hami_core: hami_core.HamiCoreFacts
    """HAMi-core."""
    kubelet: kubelet.KubeletFacts
    """The kubelet."""
    plugins: plugins.PluginFacts
    """The device plugins."""
    claims: claims.ClaimFacts
    """GPUs by claim."""
    operator: operator.OperatorFacts
    """NVIDIA's operator."""
    rights: rights.RightsFacts
    """The rights of this process."""
    refused: Mapping[str, tuple[str, ...]]
    """The paths of the node that this process may not read, by the subject whose lines need them to be right."""

    @property
    def without_gpus(self) -> str:
        """Why the node has no GPUs for containers; empty if it has GPUs."""
        return pci.why_without(self.cards, self.driver.kernel)

    @property
    def why_no_mps(self) -> str:
        """Why MPS can share no GPU of the node as the config says; empty if MPS can."""
        if self.nvml is not None and self.nvml.only_instances:
            return "MIG mode is on for every GPU, and MPS shares no instances"
        return mps.lacks_protocol(self.needs, self.driver.kernel)


class DoctorReport(Part, frozen=True, kw_only=True):
    """The result of an examination, as `gpushare doctor -o json` prints it."""

    version: int = 1
    """The version of the format, which grows when a key goes or changes its meaning."""
    gpushare: str = __version__
    """The version of gpushare."""
    right: int
    """How many lines are right."""
    wrong: int
    """How many lines are wrong."""
    not_looked_at: int
    """How many lines are about parts that were not looked at."""
    lines: tuple[Diagnosis, ...]
    """The lines, in the order in which they are best mended."""


def read_node(
    host: HostRoot,
    needs: ConfigNeeds,
    source: Callable[[Path], GpuSource],
    misfits: nvml.Misfits = lambda _inventory: (),
) -> Facts:
    """Read every part of the node.

    `source` returns the GPUs as NVML shows them, with the library below a directory, and `misfits` what of the config
    does not fit the GPUs of a node.
    """
    cards = pci.read_cards(host)
    of_driver = driver.read_driver(host, needs)
    with host.refusals() as without_runtime:
        runtime = runtimes.read_runtime(host)
    with host.refusals() as without_operator:
        of_operator = operator.read_operator(host)
    with host.refusals() as without_toolkit:
        of_toolkit = toolkit.read_toolkit(host, runtime, of_driver, operator=of_operator.installs_toolkit)
    with host.refusals() as without_kubelet:
        of_kubelet = kubelet.read_kubelet(host, needs)
    has_gpus = not pci.why_without(cards, of_driver.kernel)
    below = host.resolved(of_driver.root or needs.driver_root)
    return Facts(
        needs=needs,
        cards=cards,
        driver=of_driver,
        nvml=nvml.read_nvml(source(below), host, misfits) if has_gpus else None,
        runtime=runtime,
        toolkit=of_toolkit,
        cdi=cdi.read_cdi(host, runtime, of_driver),
        cgroups=cgroups.read_cgroups(host),
        accounting=accounting.read_accounting(host),
        limit_agent=driver_limits.read_agent(host, needs),
        mps=mps.read_mps(host, needs, of_driver),
        hami_core=hami_core.read_hami_core(host, needs),
        kubelet=of_kubelet,
        plugins=plugins.read_plugins(host),
        claims=claims.read_claims(host, needs, of_kubelet),
        operator=of_operator,
        rights=rights.read_rights(host),
        refused={
            subject: tuple(sorted(paths))
            for subjects, paths in (
                (_SUBJECTS_OF_RUNTIME, without_runtime),
                (_SUBJECTS_OF_TOOLKIT, without_toolkit),
                ((operator.SUBJECT,), without_operator),
                ((kubelet.DIRECTORY, kubelet.POD_RESOURCES), without_kubelet),
                # The checkpoint is a file, whoever may connect to the sockets.
                ((kubelet.CHECKPOINT,), {path for path in without_kubelet if not path.endswith(".sock")}),
            )
            for subject in subjects
        },
    )


def judged(facts: Facts, host: HostRoot, node: str = "NODE") -> DoctorReport:
    """Return the judgement of everything that was read; `node` is the name of the node in commands of remedies."""
    lines = tuple(_doubted(line, facts, host) for line in _lines(facts, host, node))
    counts = {judgement: sum(line.judgement == judgement for line in lines) for judgement in ("right", "wrong")}
    return DoctorReport(
        right=counts["right"],
        wrong=counts["wrong"],
        not_looked_at=len(lines) - sum(counts.values()),
        lines=lines,
    )


def _doubted(line: Diagnosis, facts: Facts, host: HostRoot) -> Diagnosis:
    """Return a line; neither as wrong nor as right where this process could not read what the line needs.

    What is wrong may be so for any path that was refused, since the parts of a node hang together.
    """
    own = facts.refused.get(line.subject, ())
    refused = own or (sorted(host.refused) if line.judgement == "wrong" else ())
    if line.judgement == "notLookedAt" or not refused:
        return line
    who = "root without capabilities" if facts.rights.user == 0 else f"user {facts.rights.user}"
    return not_looked_at(
        line.subject,
        f"{who} may not read {some_of(refused, _PATHS_TO_SHOW)}, so this is not sure: {line.found}. {WITH_RIGHTS}",
    )


def _lines(facts: Facts, host: HostRoot, node: str) -> Iterator[Diagnosis]:
    """Yield all lines: what a remedy needs comes before, such as a kubelet that works before pods that are deleted."""
    misfits = facts.nvml.misfits if facts.nvml else ()
    of_cgroups = tuple(cgroups.judge_cgroups(facts.cgroups, facts.driver.kernel))
    broken = any(line.remedy for line in of_cgroups)
    if not misfits:
        yield right(CONFIG, judged_by(facts.needs))
    yield from of_cgroups if broken else ()  # without which no kubelet starts
    yield from pci.judge_cards(facts.cards)
    if reason := facts.without_gpus:
        yield from (not_looked_at(subject, reason) for subject in _SUBJECTS_OF_GPUS)
        yield from kubelet.judge_kubelet(facts.kubelet, host, node)
        yield from plugins.judge_plugins(facts.plugins, facts.kubelet, node, operator=facts.operator.runs)
    else:
        yield from _lines_of_gpus(facts, host, node)
    yield from () if broken else of_cgroups
    yield from rights.judge_rights(facts.rights, host.refused)


def _lines_of_gpus(facts: Facts, host: HostRoot, node: str) -> Iterator[Diagnosis]:
    """Yield the lines about what brings GPUs into containers, on a machine that has GPUs."""
    without_runtime = not_looked_at(runtimes.RUNTIME, runtimes.why_without(host))
    yield from runtimes.judge_runtime(facts.runtime) if facts.runtime else (without_runtime,)
    yield from kubelet.judge_kubelet(facts.kubelet, host, node)
    # Without the section dra, other lines need less, such as CDI.
    yield from claims.judge_kubernetes(facts.claims, facts.needs, facts.kubelet)
    yield from driver.judge_driver(facts.driver, facts.needs, node, _installer(facts))
    if facts.nvml:
        yield from nvml.judge_nvml(facts.nvml, facts.driver, facts.cards or ())
        # A GPU that comes back may be the one that the config names.
        if facts.nvml.misfits:
            yield unfit(facts.needs, facts.nvml.misfits)
    look = cdi.SpecificationLook(
        facts.cdi,
        facts.needs,
        facts.toolkit,
        facts.driver,
        facts.runtime,
        facts.plugins.ours is True,
        _gpu_names(facts),
    )
    yield from _of_files(facts, facts.runtime, look, host) if facts.runtime else _without_runtime(facts, look, host)
    # An MPS control daemon of another plugin ends with that plugin.
    yield from plugins.judge_plugins(facts.plugins, facts.kubelet, node, operator=facts.operator.runs)
    yield from _of_isolations(facts, look, host)
    yield from claims.judge_claims(facts.claims, facts.needs, facts.kubelet, facts.plugins)


def _installer(facts: Facts) -> driver.Installer:
    """Return who brings the driver of the node."""
    of_toolkit = facts.toolkit.driver_root not in {"/", driver.OPERATORS_ROOT} and "root" not in facts.toolkit.astray
    return driver.Installer(
        operator=facts.operator.installs_driver or facts.operator.has_driver_pod,
        was_operator=bool(facts.operator.left),
        in_pod=facts.runtime is None,
        hidden=facts.runtime is None or of_toolkit or (facts.nvml is not None and not facts.nvml.failure),
    )


def _without_runtime(facts: Facts, look: cdi.SpecificationLook, host: HostRoot) -> Iterator[Diagnosis]:
    """Yield the lines about what needs no container runtime, as far as the root shows any of that.

    A root without a container runtime may be that of a pod, which lacks most files of the node: what is not there says
    nothing.
    """
    shown: dict[str, Iterator[Diagnosis]] = {}
    if facts.toolkit.directory is not None:
        lines = toolkit.judge_toolkit(facts.toolkit, facts.needs, facts.driver)
        shown |= {toolkit.VERSION: lines, toolkit.SETTINGS: iter(())}
    if facts.cdi.files or facts.cdi.unusable:
        shown[cdi.SUBJECT] = cdi.judge_cdi(look)
    for subject in _SUBJECTS_OF_FILES:
        yield from shown.get(subject, (not_looked_at(subject, runtimes.why_without(host)),))


def _of_files(facts: Facts, runtime: RuntimeFacts, look: cdi.SpecificationLook, host: HostRoot) -> Iterator[Diagnosis]:
    """Yield the lines about what only the files of a node show."""
    yield from operator.judge_operator(facts.operator, runtime, facts.toolkit)
    state = runtimes.OperatorState(facts.operator.runs, facts.operator.installs_toolkit)
    of_handlers = runtimes.judge_handlers(runtime, host, facts.needs, state)
    of_toolkit = toolkit.judge_toolkit(facts.toolkit, facts.needs, facts.driver)
    # The remedies of the handlers are commands of the toolkit, which a node without a toolkit needs first.
    yield from (*of_toolkit, *of_handlers) if facts.toolkit.directory is None else (*of_handlers, *of_toolkit)
    yield from cdi.judge_cdi(look)


def _of_isolations(facts: Facts, look: cdi.SpecificationLook, host: HostRoot) -> Iterator[Diagnosis]:
    """Yield the lines about what keeps containers apart."""
    needs, no_mps = facts.needs, bool(facts.why_no_mps)
    limits = driver_limits.LimitLook(look, facts.cgroups, facts.accounting, facts.nvml, facts.limit_agent)
    decided = limits.shown and facts.runtime is not None
    choices = driver_limits.choices(limits, no_mps=no_mps) if decided else ()

    def needed(what: Callable[[EntryChoice], bool]) -> bool:
        """Return whether an entry of the config needs something on this node."""
        return any(map(what, choices)) if decided else in_any_case(needs.entries, what, no_mps=no_mps)

    without_mps = [choice for choice in choices if choice.misses_mps]
    use = mps.MpsUse(needed(_NEEDS_MPS), facts.why_no_mps, names_of(without_mps))
    of_mps = mps.judge_mps(facts.mps, needs, facts.driver, facts.plugins, use)
    if facts.runtime is None:
        shown = host.exists(needs.mps_root) and (facts.mps.control or facts.mps.agent)
        yield from of_mps if shown else (not_looked_at(mps.SUBJECT, runtimes.why_without(host)),)
        return
    yield from of_mps
    yield from hami_core.judge_hami_core(facts.hami_core, needs, needed=needed(_NEEDS_HAMI_CORE))
    yield from driver_limits.judge_driver_limits(limits, choices)


def _gpu_names(facts: Facts) -> tuple[cdi.GpuNames, ...] | None:
    """Return how the GPUs are called in CDI specifications; None if NVML did not show the GPUs."""
    if facts.nvml is None or facts.nvml.failure:
        return None
    gpus = [gpu for gpu in facts.nvml.gpus if not gpu.divided]
    return tuple(cdi.GpuNames(gpu.label if facts.needs.by_index else gpu.uuid, gpu.uuid) for gpu in gpus)

"""The meaning of node labels for a config: labels of NVIDIA, ACK, nos and cGPU; pure.

`nvidia.com/device-plugin.config` chooses a named config (see `sources`); the labels of ACK and nos change the config.
The first present label with a known value decides how GPUs are shared. A later label with a different request is
reported and not followed.
"""

from collections.abc import Callable, Mapping

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.isolations import limits_compute
from gpushare_plugin.config.schema.sections import Config, MemoryResource, MemoryResources, Sharing
from gpushare_plugin.config.schema.values import AllDevices
from gpushare_plugin.core.policies import POLICIES, is_policy
from gpushare_plugin.slices.slice import SliceKind

Labels = Mapping[str, str]
"""The labels of a node, by key."""

CONFIG = "nvidia.com/device-plugin.config"
"""NVIDIA's label: the name of the node's config."""
SCHEDULE = "ack.node.gpu.schedule"
"""ACK's label: the way in which GPUs are shared."""
PARTITIONING = "nos.nebuly.com/gpu-partitioning"
"""nos' label: the kind of slices that GPUs are cut into."""
PLACEMENT = "ack.node.gpu.placement"
"""ACK's label: the policy by which units are placed on GPUs."""

CGPU_DISABLED = "cgpu.disable.isolation"
"""The label of ACK that switches the isolation of cGPU off."""

READ = frozenset({CONFIG, SCHEDULE, PARTITIONING, PLACEMENT, CGPU_DISABLED})
"""The labels with an effect on the config."""


class Meaning(Struct, frozen=True):
    """The request expressed by a value of a label."""

    requests: str
    """The request, in words."""
    change: Callable[[Config], Config]
    """Returns a config changed as requested; an equal config shows that the label agrees with the config."""
    not_done: str | None = None
    """The part of the request that is not followed, in words; None if gpushare follows the whole request."""
    done: Callable[[Config], bool] = lambda _config: False
    """Returns whether a config already does the part in `not_done`."""
    partitioning: SliceKind | None = None
    """The kind of slices to create as pods request them, which no config can express; None without such a request."""


def apply_labels(labels: Labels, config: Config, *, partitioning: bool = False) -> tuple[EffectiveConfig, list[str]]:
    """Return the effective config of a node, and notices for people.

    `config` is the config chosen by the labels. If `nvidia.com/device-plugin.config` has a value, `config` alone
    decides how GPUs are shared. `partitioning` says whether a label can make the daemon cut GPUs into the slices wanted
    by the node's annotations.
    """
    name = labels.get(CONFIG)
    ways = _ways(config, partitioning=partitioning)
    shared, notices = _shared(EffectiveConfig(config), labels, ways, spelled_label(CONFIG, name) if name else None)
    config, more = _placed(shared.config, labels)
    disabled = labels.get(CGPU_DISABLED, "false")
    if disabled not in {"true", "false"}:
        more.append(_not_understood(CGPU_DISABLED, disabled, ("true", "false")))
    return replace(shared, config=config, cgpu_disabled=disabled == "true"), [*notices, *more]


def _shared(
    before: EffectiveConfig, labels: Labels, ways: Mapping[str, Mapping[str, Meaning]], decided_by: str | None
) -> tuple[EffectiveConfig, list[str]]:
    """Follow the first label with a request for a way of sharing, and report disagreeing labels."""
    effective = before
    notices = []
    for label, meanings in ways.items():
        value = labels.get(label)
        if value is None:
            continue
        meaning = meanings.get(value)
        if meaning is None:
            notices.append(_not_understood(label, value, meanings))
            continue
        changed = EffectiveConfig(meaning.change(effective.config), partitioning=meaning.partitioning)
        agrees = changed == effective
        if decided_by is None:
            agrees, effective, decided_by = True, changed, spelled_label(label, value)
        if agrees and meaning.not_done and not meaning.done(effective.config):
            notices.append(f"{spelled_label(label, value)}: {meaning.not_done}")
        elif not agrees:
            notices.append(
                f"node labels disagree: {spelled_label(label, value)} requests {meaning.requests}, "
                f"but {decided_by} takes precedence"
            )
    return effective, notices


def _placed(config: Config, labels: Labels) -> tuple[Config, list[str]]:
    """Follow the label with a request for a policy."""
    value = labels.get(PLACEMENT)
    if value is None:
        return config, []
    if not is_policy(value):
        return config, [_not_understood(PLACEMENT, value, tuple(POLICIES))]
    if config.sharing.memory is None:
        return config, [f"{spelled_label(PLACEMENT, value)}: has no effect: no GPU is shared by memory"]
    resources = tuple(each.model_copy(update={"placement": value}) for each in config.sharing.memory.resources)
    return _sharing(config, memory=MemoryResources(resources=resources)), []


def whole(config: Config) -> Config:
    """Return `config` with every GPU offered whole."""
    return config.model_copy(update={"sharing": Sharing()})


def by_memory(config: Config) -> Config:
    """Return `config` with sharing by memory only: as configured, or else for all GPUs, in GiB."""
    return _only(config, config.sharing.memory or MemoryResources(resources=(MemoryResource(name=names.MEMORY),)))


def by_memory_and_compute(config: Config) -> Config:
    """Return `config` with sharing by memory only, and with requests for compute where the isolation limits compute."""
    shared = by_memory(config)
    resources = shared.sharing.memory.resources if shared.sharing.memory else ()
    return _only(shared, MemoryResources(resources=tuple(map(_with_cores, resources))))


def _with_cores(entry: MemoryResource) -> MemoryResource:
    return entry.model_copy(update={"compute": "requested"}) if limits_compute(entry.isolation) else entry


def _offers_cores(config: Config) -> bool:
    resources = config.sharing.memory.resources if config.sharing.memory else ()
    return any(each.compute == "requested" for each in resources)


def shared_through_mps(config: Config) -> Config:
    """Return `config` as changed by the node label `ack.node.gpu.schedule=mps`.

    All GPUs are shared only by memory, as `aliyun.com/gpu-mem`, under MPS. The other settings of the entry
    `aliyun.com/gpu-mem`, for example the unit, stay. ACK isolates memory for this label, and lets containers share all
    compute. gpushare does the same unless the config limits compute.
    """
    entries = config.sharing.memory.resources if config.sharing.memory else ()
    entry = next((entry for entry in entries if entry.name == names.MEMORY), MemoryResource(name=names.MEMORY))
    changes: dict[str, object] = {"devices": AllDevices(), "isolation": ("mps",), "burst": None}
    if not limits_compute(entry.isolation) and "compute" not in entry.model_fields_set:
        changes["compute"] = "unlimited"
    under_mps = entry.model_copy(update=changes)
    return _only(config, MemoryResources(resources=(under_mps,)))


def in_slices(config: Config) -> Config:
    """Return `config` with sharing by slices under MPS only; unchanged without slices in the config."""
    return config.model_copy(update={"sharing": Sharing(mps=config.sharing.mps)}) if _has_slices(config) else config


def in_instances(config: Config) -> Config:
    """Return `config` with MIG instances offered by profile, and no sharing."""
    flags = config.flags.model_copy(update={"mig_strategy": "mixed"})
    resources = config.resources.model_copy(update={"migs": ()})
    return whole(config).model_copy(update={"flags": flags, "resources": resources})


def _has_slices(config: Config) -> bool:
    return config.sharing.mps is not None and bool(config.sharing.mps.sizes)


def _as_it_is(config: Config) -> Config:
    return config


_WITHOUT_SLICES = (
    "slices are configured in sharing.mps.sizes, which the config does not have; the config is unchanged. To have "
    "slices made as pods request them, start gpushare run with --partitioning (chart: partitioning.enabled)"
)
_WITHOUT_CORES = (
    f"{names.CORES} is not offered, because nothing limits compute; set isolation to mps, driver+mps or hami-core in "
    "sharing.memory.resources"
)
_WITHOUT_MIG = (
    "MIG instances are offered as flags.migStrategy says; the config is unchanged. To have them made as pods request "
    "them, "
)
_WITHOUT_OPTION = f"{_WITHOUT_MIG}start gpushare run with --partitioning (chart: partitioning.enabled)"
_OTHER_LABEL = f"{_WITHOUT_MIG}set the node label {PARTITIONING}=mig instead"

_WAYS: dict[str, Mapping[str, Meaning]] = {
    SCHEDULE: {
        "default": Meaning("whole GPUs", whole),
        "topology": Meaning("whole GPUs, close to each other", whole),
        "share": Meaning("sharing by memory", by_memory),
        "cgpu": Meaning("sharing by memory", by_memory, "cGPU is not supported, so it does not isolate memory"),
        "core_mem": Meaning("sharing by memory and compute", by_memory_and_compute, _WITHOUT_CORES, done=_offers_cores),
        "mps": Meaning("sharing by memory under MPS", shared_through_mps),
        "mig": Meaning("MIG instances", _as_it_is, _OTHER_LABEL),
    },
    PARTITIONING: {
        "mps": Meaning("slices under MPS", in_slices, _WITHOUT_SLICES, done=_has_slices),
        "mig": Meaning("MIG instances", _as_it_is, _WITHOUT_OPTION),
    },
}
"""The labels with requests for a way of sharing, in order of precedence, and the meanings of their values.

Facts: Alibaba Cloud's "Enable scheduling features" of ACK, and "Getting started with MPS partitioning" of nos.
"""

_PARTITIONED: Mapping[str, Meaning] = {
    "mps": Meaning("slices under MPS as pods request them", whole, partitioning="mps"),
    "mig": Meaning("MIG instances as pods request them", in_instances, partitioning="mig"),
}
"""The meanings of the values of `PARTITIONING` on a node with slices created at run time.

Slices under MPS in the config stay unchanged.
"""


def _ways(config: Config, *, partitioning: bool) -> Mapping[str, Mapping[str, Meaning]]:
    if not partitioning:
        return _WAYS
    fixed = {"mps"} if _has_slices(config) else set()
    followed = {value: meaning for value, meaning in _PARTITIONED.items() if value not in fixed}
    return _WAYS | {PARTITIONING: {**_WAYS[PARTITIONING], **followed}}


def _only(config: Config, memory: MemoryResources) -> Config:
    return config.model_copy(update={"sharing": Sharing(memory=memory)})


def _sharing(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"sharing": config.sharing.model_copy(update=changes)})


def spelled_label(label: str, value: str) -> str:
    """Spell a label for messages."""
    return f"node label {label}={value}"


def _not_understood(label: str, value: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    return f"{spelled_label(label, value)} is unknown and has no effect; expected one of {', '.join(known)}"

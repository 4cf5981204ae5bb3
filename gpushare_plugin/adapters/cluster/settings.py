"""Which settings the labels of a node ask for, and everything that should be told about that; pure.

`nvidia.com/device-plugin.config` chooses a named config; Aliyun's and nos' labels change what is chosen. The first of
them that is there decides how the GPUs are shared; one after it that asks for something else is told and not followed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpushare_plugin.config.ack import shared_through_mps
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import Config, MemoryResource, MemoryResources, Sharing
from gpushare_plugin.config.sources.choice import Configs

Labels = Mapping[str, str]

CONFIG = "nvidia.com/device-plugin.config"
SCHEDULE = "ack.node.gpu.schedule"
PARTITIONING = "nos.nebuly.com/gpu-partitioning"
PLACEMENT = "ack.node.gpu.placement"

CGPU_DISABLED = "cgpu.disable.isolation"

READ = frozenset({CONFIG, SCHEDULE, PARTITIONING, PLACEMENT, CGPU_DISABLED})
"""The labels that settings depend on."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a value of a label asks for: in words, as a change of the settings, and what of it is not done.

    `change` leaves settings alone that are as asked for already, so that labels which agree can be told from others.
    `done` tells for which settings all of it is done.
    """

    asks: str
    change: Callable[[Config], Config]
    not_done: str | None = None
    done: Callable[[Config], bool] = lambda _config: False


def settled(labels: Labels, configs: Configs, *, starting: bool = False) -> Loaded:
    """Return the settings that hold on a node with these labels, with notices of what the labels ask in vain.

    A label that names a config which is not there, or cannot be used, is a problem of the settings, so that those in
    force stay; while `starting` there are none, and the node begins as if it had no such label.
    """
    name = labels.get(CONFIG) or None
    notices = []
    if name is not None and starting and name not in configs.names():
        notices.append(f"{_spelled(CONFIG, name)}: there is no such config; as without this label")
        name = None
    loaded = configs.load(name)
    if name is not None and starting and loaded.problems:
        (first, *_) = loaded.lines(loaded.problems)
        notices.append(f"{_spelled(CONFIG, name)}: this config cannot be used ({first}); as without this label")
        name, loaded = None, configs.load(None)
    if loaded.config is None:
        return loaded
    config, more = _shared(loaded.config, labels, _spelled(CONFIG, name) if name else None)
    config, still_more = _placed(config, labels)
    notices = [*loaded.notices, *notices, *more, *still_more]
    if labels.get(CGPU_DISABLED, "false") not in {"true", "false"}:
        notices.append(_not_understood(CGPU_DISABLED, labels[CGPU_DISABLED], ("true", "false")))
    return replace(loaded, config=config, notices=tuple(notices), cgpu_disabled=labels.get(CGPU_DISABLED) == "true")


def _shared(config: Config, labels: Labels, decided_by: str | None) -> tuple[Config, list[str]]:
    """Follow the first label that says how GPUs are shared, and tell of those that disagree."""
    notices = []
    for label, meanings in _WAYS.items():
        value = labels.get(label)
        if value is None:
            continue
        meaning = meanings.get(value)
        if meaning is None:
            notices.append(_not_understood(label, value, meanings))
            continue
        changed = meaning.change(config)
        agrees = changed == config
        if decided_by is None:
            agrees, config, decided_by = True, changed, _spelled(label, value)
        if agrees and meaning.not_done and not meaning.done(config):
            notices.append(f"{_spelled(label, value)}: {meaning.not_done}")
        elif not agrees:
            notices.append(
                f"node labels disagree: {_spelled(label, value)} asks for {meaning.asks}, but {decided_by} decides"
            )
    return config, notices


def _placed(config: Config, labels: Labels) -> tuple[Config, list[str]]:
    """Follow the label that says where units are placed."""
    value = labels.get(PLACEMENT)
    match value:
        case None:
            return config, []
        case "binpack" | "spread" as placement if config.sharing.memory is not None:
            resources = tuple(
                each.model_copy(update={"placement": placement}) for each in config.sharing.memory.resources
            )
            return _sharing(config, memory=MemoryResources(resources=resources)), []
        case "binpack" | "spread":
            return config, [f"{_spelled(PLACEMENT, value)}: no GPU is shared by memory, so there is nothing to place"]
        case _:
            return config, [_not_understood(PLACEMENT, value, ("binpack", "spread"))]


def whole(config: Config) -> Config:
    """Offer every GPU whole."""
    return config.model_copy(update={"sharing": Sharing()})


def by_memory(config: Config) -> Config:
    """Share by memory and in no other way: as the settings have it, or else all GPUs, in GiB."""
    return _only(config, config.sharing.memory or MemoryResources(resources=(MemoryResource(name=names.MEMORY),)))


def in_slices(config: Config) -> Config:
    """Share by MPS in slices and in no other way, where the settings say in which."""
    return config.model_copy(update={"sharing": Sharing(mps=config.sharing.mps)}) if _has_slices(config) else config


def _has_slices(config: Config) -> bool:
    return config.sharing.mps is not None and bool(config.sharing.mps.sizes)


def _as_it_is(config: Config) -> Config:
    return config


_WITHOUT_SLICES = "which slices there are is for sharing.mps.sizes to say; the settings have none and stay as they are"
_WITHOUT_MIG = "GPUs are not partitioned here; the settings stay as they are"

_WAYS: Mapping[str, Mapping[str, Meaning]] = {
    SCHEDULE: {
        "default": Meaning("whole GPUs", whole),
        "topology": Meaning("whole GPUs, close to each other", whole),
        "share": Meaning("sharing by memory", by_memory),
        "cgpu": Meaning(
            "sharing by memory", by_memory, "the driver of cGPU is not here, so memory is not isolated by it"
        ),
        "core_mem": Meaning(
            "sharing by memory", by_memory, "aliyun.com/gpu-core.percentage is not served, only aliyun.com/gpu-mem"
        ),
        "mps": Meaning("sharing by memory under MPS", shared_through_mps),
        "mig": Meaning("MIG instances", _as_it_is, _WITHOUT_MIG),
    },
    PARTITIONING: {
        "mps": Meaning("slices under MPS", in_slices, _WITHOUT_SLICES, done=_has_slices),
        "mig": Meaning("MIG instances", _as_it_is, _WITHOUT_MIG),
    },
}
"""The labels that say how GPUs are shared, the one that decides first, and what their values mean.

Facts: Alibaba Cloud's "Enable scheduling features" of ACK, and "Getting started with MPS partitioning" of nos.
"""


def _only(config: Config, memory: MemoryResources) -> Config:
    return config.model_copy(update={"sharing": Sharing(memory=memory)})


def _sharing(config: Config, **changes: object) -> Config:
    return config.model_copy(update={"sharing": config.sharing.model_copy(update=changes)})


def _spelled(label: str, value: str | None) -> str:
    return f"node label {label}={value}"


def _not_understood(label: str, value: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    return f"{_spelled(label, value)} is not understood and changes nothing; expected one of {', '.join(known)}"

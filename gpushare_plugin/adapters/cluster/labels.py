"""The node labels other tools select on, as NVIDIA's GPU feature discovery names and spells them; pure.

Facts: `internal/lm` of NVIDIA/k8s-device-plugin and its table of labels. Left out is what this daemon cannot know: the
machine type, the PCI class (`gpu.mode`), the fabric (`gpu.clique`), and the timestamp, which would change for nothing.
"""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from gpushare_plugin.config.schema import names
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.snapshot import SharingMode, Snapshot

DISCOVERY_MARK = "nvidia.com/gfd.timestamp"
"""The label that tells that NVIDIA's feature discovery labels the node."""

_FAMILIES = {
    1: "tesla",
    2: "fermi",
    3: "kepler",
    5: "maxwell",
    6: "pascal",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
    13: "rubin",
}

_STRATEGIES: dict[SharingMode, str] = {
    "mps": "mps",
    "time-slicing": "time-slicing",
    "memory": "memory",
    "exclusive": "none",
}
"""Values of `gpu.sharing-strategy`, what shares most first; `memory` is ours, for `none` would be wrong."""


def node_labels(snapshot: Snapshot) -> dict[str, str]:
    """Return the labels that are true of a node, none where it has no GPU.

    Of several products the one of most GPUs is told, with its own count, as these labels hold one only. Where MIG
    instances stand for GPUs (strategy `single`) these are what is told; `mixed` adds labels for each profile.
    """
    inventory, strategy = snapshot.inventory, snapshot.mig_strategy
    gpus = inventory.instances if strategy == "single" and inventory.instances else inventory.gpus
    if not gpus:
        return {}
    counts = Counter(map(_product, gpus))
    example = max(gpus, key=lambda gpu: (counts[_product(gpu)], -gpu.index))
    told = {
        **_versions(snapshot.inventory),
        "mig.capable": _word(any(gpu.mig_capable for gpu in gpus)),
        # False unless MPS is asked for, as feature discovery has it.
        "mps.capable": _word(snapshot.mps_configured and not any(gpu.mig_enabled for gpu in gpus)),
        "gpu.count": str(counts[_product(example)]),
        "gpu.memory": str(_memory(example)),
        "gpu.family": _family(example.compute_capability),
        "gpu.compute.major": str(example.compute_capability[0]),
        "gpu.compute.minor": str(example.compute_capability[1]),
        **_sharing(snapshot, example, gpus),
    }
    if strategy != "none":
        told["mig.strategy"] = strategy
    if strategy == "mixed":
        told |= _profiles(inventory.instances)
    return {f"nvidia.com/{name}": value for name, value in told.items() if value}


def _profiles(instances: Iterable[Gpu]) -> dict[str, str]:
    told = {}
    for name, alike in groupby(sorted(instances, key=_resource), key=_resource):
        example, *others = alike
        told[f"{name}.count"] = str(1 + len(others))
        told[f"{name}.product"] = _product(example)
        told[f"{name}.memory"] = str(_memory(example))
    return told


def _resource(instance: Gpu) -> str:
    assert instance.mig is not None  # noqa: S101 - it is an instance
    return names.mig(instance.mig.profile).removeprefix("nvidia.com/")


def _product(gpu: Gpu) -> str:
    return _label_value(gpu.product.replace("+", "."))


def _memory(gpu: Gpu) -> int:
    return gpu.memory_mib if gpu.mig else gpu.total_mib or gpu.memory_mib


def _sharing(snapshot: Snapshot, example: Gpu, gpus: Iterable[Gpu]) -> dict[str, str]:
    alike = [gpu for gpu in gpus if _product(gpu) == _product(example)]
    modes = {gpu.uuid: snapshot.mode(gpu) for gpu in alike}
    mode = next((mode for mode in _STRATEGIES if mode in modes.values()), None)
    product = _product(example)
    if mode is None:
        return {"gpu.product": product}
    told = {"gpu.sharing-strategy": _STRATEGIES[mode]}
    shared = next(gpu for gpu in alike if modes[gpu.uuid] == mode)
    resource, units = next(iter(snapshot.offers(shared).items()))
    # Pieces of memory are no replicas: one can ask for several, and each is another amount.
    if not units[0].mib:
        told["gpu.replicas"] = str(len(units))
        # Whoever asks for whole GPUs under this name must be able to tell; another name tells already.
        if product and mode != "exclusive" and resource in snapshot.whole_gpu_names:
            product += "-SHARED"
    return {**told, "gpu.product": product}


def _versions(inventory: Inventory) -> dict[str, str]:
    major, minor, revision = (*inventory.driver_version.split("."), "", "", "")[:3]
    cuda_major, cuda_minor = map(str, inventory.cuda_version)
    told = {
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": inventory.driver_version,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
        # Deprecated, and selected on all the same.
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
    }
    return {name: _label_value(value) for name, value in told.items()}


def _family(capability: tuple[int, int]) -> str:
    match capability:
        case (7, minor):
            return "volta" if minor < 5 else "turing"  # noqa: PLR2004 - Turing is 7.5
        case (8, minor):
            return "ampere" if minor < 9 else "ada-lovelace"  # noqa: PLR2004 - Ada Lovelace is 8.9
        case (major, _):
            return _FAMILIES.get(major, "undefined")


def _label_value(text: str) -> str:
    """Spell text as the value of a label: at most 63 characters, with words joined by dashes."""
    allowed = re.sub(r"[^-A-Za-z0-9_. ]", "", text)
    return "-".join(allowed.split())[: 63 - len("-SHARED")].strip("-_.")


def _word(value: bool) -> str:  # noqa: FBT001 - the value itself
    return "true" if value else "false"

"""The node labels other tools select on, as NVIDIA's GPU feature discovery names and spells them; pure.

Facts: `internal/lm` of NVIDIA/k8s-device-plugin and its table of labels. Not written: what this daemon cannot know
(the machine type, the PCI class `gpu.mode`, the fabric `gpu.clique`), and the timestamp, which would cause more writes.
"""

import re
from collections import Counter
from collections.abc import Iterable

from gpushare_plugin.config.schema import names
from gpushare_plugin.model.gpu import Gpu, Inventory
from gpushare_plugin.model.snapshot import SharingMode, Snapshot

DISCOVERY_MARK = "nvidia.com/gfd.timestamp"
"""The label by which we know that NVIDIA's feature discovery labels the node."""

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
"""Values of `gpu.sharing-strategy`, the mode with the most sharing first; `memory` is ours: `none` would be wrong."""


def node_labels(snapshot: Snapshot) -> dict[str, str]:
    """Return the labels that are true of a node, none where it has no GPU.

    These labels can describe one product only: of several, the one of most GPUs, with its own count. Under the MIG
    strategy `single` they describe the MIG instances; `mixed` adds labels for each profile.
    """
    inventory, strategy = snapshot.inventory, snapshot.mig_strategy
    gpus = inventory.instances if strategy == "single" and inventory.instances else inventory.cards
    if not gpus:
        return {}
    counts = Counter(map(_product, gpus))
    example = max(gpus, key=lambda gpu: (counts[_product(gpu)], -gpu.index))
    values = {
        **_versions(snapshot.inventory),
        "mig.capable": _word(any(gpu.mig_capable for gpu in gpus)),
        # False unless MPS is configured, as in feature discovery.
        "mps.capable": _word(snapshot.mps_configured and not any(gpu.mig_enabled for gpu in gpus)),
        "gpu.count": str(counts[_product(example)]),
        "gpu.memory": str(_memory(example)),
        "gpu.family": _family(example.compute_capability),
        "gpu.compute.major": str(example.compute_capability[0]),
        "gpu.compute.minor": str(example.compute_capability[1]),
        **_sharing(snapshot, example, gpus),
    }
    if strategy != "none":
        values["mig.strategy"] = strategy
    if strategy == "mixed":
        values |= _profiles(inventory.instances)
    return {f"nvidia.com/{name}": value for name, value in values.items() if value}


def _profiles(instances: Iterable[Gpu]) -> dict[str, str]:
    by_resource: dict[str, list[Gpu]] = {}
    for gpu in instances:
        if gpu.mig:
            by_resource.setdefault(names.mig(gpu.mig.profile).removeprefix("nvidia.com/"), []).append(gpu)
    values = {}
    for name, (example, *others) in by_resource.items():
        values[f"{name}.count"] = str(1 + len(others))
        values[f"{name}.product"] = _product(example)
        values[f"{name}.memory"] = str(_memory(example))
    return values


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
    values = {"gpu.sharing-strategy": _STRATEGIES[mode]}
    shared = next(gpu for gpu in alike if modes[gpu.uuid] == mode)
    resource, units = next(iter(snapshot.offers(shared).items()))
    # Memory units are not replicas: pods request several, for more memory.
    if not units[0].mib:
        values["gpu.replicas"] = str(len(units))
        # Only where the resource has the name of whole GPUs does the product have to say that they are shared.
        if product and mode != "exclusive" and resource in snapshot.whole_gpu_names:
            product += "-SHARED"
    return {**values, "gpu.product": product}


def _versions(inventory: Inventory) -> dict[str, str]:
    major, minor, revision = (*inventory.driver_version.split("."), "", "", "")[:3]
    cuda_major, cuda_minor = map(str, inventory.cuda_version)
    values = {
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": inventory.driver_version,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime-version.full": f"{cuda_major}.{cuda_minor}",
        # Deprecated, but still used in selectors.
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
    }
    return {name: _label_value(value) for name, value in values.items()}


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

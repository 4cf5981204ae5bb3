"""The node labels for the selectors of other tools, with the names and values of NVIDIA's GPU feature discovery; pure.

Facts: `internal/lm` of NVIDIA/k8s-device-plugin and its table of labels. Not written: the fabric label `gpu.clique`,
and the `vgpu` labels of virtual GPUs.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.core.snapshot import SharingMode, Snapshot
from gpushare_plugin.kube.names import ISOLATION, NEEDS_MPS
from gpushare_plugin.ledger.product_label import SHARED, label_value, product_value
from gpushare_plugin.slices.slice import Slice

TIMESTAMP = "nvidia.com/gfd.timestamp"
"""Label with the time of writing; if another manager owns the label, NVIDIA's feature discovery labels the node."""

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
"""Values of `gpu.sharing-strategy`, the mode with the most sharing first.

NVIDIA has no value `memory`; gpushare adds the value, because `none` would be wrong.
"""


_MODES = {0x030000: "graphics", 0x030200: "compute"}
"""Values of `gpu.mode` by PCI class: a VGA controller, which drives displays, and a 3D controller, without displays."""


def node_labels(snapshot: Snapshot) -> dict[str, str]:
    """Return the labels of a node without the timestamp; a node without GPUs has no labels.

    The labels of a resource can describe only one product. If a node has several, the labels describe the product with
    the most GPUs, and count only GPUs of this product. Under the MIG strategy `single`, the labels describe the MIG
    instances; `mixed` adds labels for every profile.
    """
    inventory, strategy = snapshot.inventory, snapshot.mig_strategy
    gpus = inventory.instances if strategy == "single" and inventory.instances else inventory.cards
    if not gpus:
        return {}
    example = _example(gpus)
    values = {
        **_versions(inventory),
        "mig.capable": _word(any(gpu.mig_capable for gpu in gpus)),
        # True only if GPUs are shared through MPS, as in feature discovery; here even if some GPUs are in MIG mode.
        "mps.capable": _word(snapshot.needs_mps and not all(gpu.mig_enabled for gpu in inventory.cards)),
        "gpu.machine": label_value(inventory.machine) or "unknown",
        "gpu.mode": _mode(inventory.cards),
        **_architecture(example.compute_capability),
        **_resource("gpu", gpus, snapshot),
    }
    if strategy != "none":
        values["mig.strategy"] = strategy
    if strategy == "mixed":
        for name, instances in _by_resource(inventory.instances).items():
            values |= _resource(name, instances, snapshot)
    return {f"nvidia.com/{name}": value for name, value in values.items() if value}


def own_labels(snapshot: Snapshot) -> dict[str, str]:
    """Return gpushare's own labels: whether `gpushare mps` has work on the node, and which isolation was chosen.

    The isolation is there where the config lists several for a GPU, or has the driver limit memory.
    """
    mps = {NEEDS_MPS: "true"} if snapshot.needs_mps else {}
    chosen = snapshot.isolation_reasons.keys() | snapshot.driver_limits.keys()
    names = {name for uuid, name in snapshot.isolations.items() if uuid in chosen}
    if not names:
        return mps
    (name,) = names if len(names) == 1 else ("mixed",)
    return {**mps, ISOLATION: name.replace("+", "-")}  # values of labels have no plus sign


def _mode(cards: Iterable[Gpu]) -> str:
    modes = {_MODES.get(gpu.pci_class or 0, "unknown") for gpu in cards}
    return modes.pop() if len(modes) == 1 else "unknown"


def _by_resource(instances: Iterable[Gpu]) -> dict[str, list[Gpu]]:
    by_resource: dict[str, list[Gpu]] = {}
    for gpu in instances:
        if gpu.mig:
            by_resource.setdefault(Slice("mig", gpu.mig.profile).resource.removeprefix("nvidia.com/"), []).append(gpu)
    return by_resource


def _example(gpus: Sequence[Gpu]) -> Gpu:
    counts = Counter(map(_product, gpus))
    return max(gpus, key=lambda gpu: (counts[_product(gpu)], -gpu.index))


def _resource(name: str, gpus: Sequence[Gpu], snapshot: Snapshot) -> dict[str, str]:
    example = _example(gpus)
    alike = [gpu for gpu in gpus if _product(gpu) == _product(example)]
    values = {
        "count": str(len(alike)),
        "memory": str(_memory(example) or ""),
        **_attributes(example),
        **_sharing(snapshot, alike),
    }
    return {f"{name}.{key}": value for key, value in values.items()}


def _product(gpu: Gpu) -> str:
    return product_value(gpu.product)


def _memory(gpu: Gpu) -> int:
    """Return the total memory in MiB, or what the config gives as the size of a GPU; 0 where unknown."""
    return gpu.memory_mib if gpu.mig else gpu.total_mib or gpu.memory_mib


def _attributes(gpu: Gpu) -> dict[str, str]:
    if gpu.mig is None or gpu.mig.attributes is None:
        return {}
    attributes = gpu.mig.attributes
    values = {
        "multiprocessors": attributes.multiprocessors,
        "slices.gi": attributes.gpu_slices,
        "slices.ci": attributes.compute_slices,
        "engines.copy": attributes.copy_engines,
        "engines.decoder": attributes.decoders,
        "engines.encoder": attributes.encoders,
        "engines.jpeg": attributes.jpeg_decoders,
        "engines.ofa": attributes.optical_flow_accelerators,
    }
    return {name: str(value) for name, value in values.items()}


def _sharing(snapshot: Snapshot, alike: Sequence[Gpu]) -> dict[str, str]:
    modes = {gpu.uuid: snapshot.mode(gpu) for gpu in alike}
    mode = next((mode for mode in _STRATEGIES if mode in modes.values()), None)
    product = _product(alike[0])
    if mode is None:
        # As in feature discovery for a card that offers only its MIG instances.
        cut = snapshot.mig_strategy == "mixed" and alike[0].mig_enabled and not alike[0].mig
        return {"product": product, **({"replicas": "0", "sharing-strategy": "none"} if cut else {})}
    values = {"sharing-strategy": _STRATEGIES[mode]}
    shared = next(gpu for gpu in alike if modes[gpu.uuid] == mode)
    resource, units = next(iter(snapshot.offers(shared).items()))
    # Memory units are not replicas: pods request several, for more memory.
    if not units[0].mib:
        values["replicas"] = str(len(units))
        # Only where replicas have the name of the unshared resource does the product have to say that they are shared.
        if product and mode != "exclusive" and resource in snapshot.unshared_names:
            product += SHARED
    return {**values, "product": product}


def _versions(inventory: Inventory) -> dict[str, str]:
    major, minor, revision = (*inventory.driver_version.split("."), "", "", "")[:3]
    cuda_major, _, cuda_minor = inventory.cuda.partition(".")
    values = {
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver-version.full": inventory.driver_version,
        "cuda.runtime-version.major": cuda_major,
        "cuda.runtime-version.minor": cuda_minor,
        "cuda.runtime-version.full": inventory.cuda,
        # Deprecated, but still used in selectors.
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
        "cuda.runtime.major": cuda_major,
        "cuda.runtime.minor": cuda_minor,
    }
    return {name: label_value(value) for name, value in values.items()}


def _architecture(capability: tuple[int, int] | None) -> dict[str, str]:
    if capability is None:
        return {}
    major, minor = map(str, capability)
    return {"gpu.family": _family(capability), "gpu.compute.major": major, "gpu.compute.minor": minor}


def _family(capability: tuple[int, int]) -> str:
    match capability:
        case (7, minor):
            return "volta" if minor < 5 else "turing"  # noqa: PLR2004 - Turing is 7.5
        case (8, minor):
            return "ampere" if minor < 9 else "ada-lovelace"  # noqa: PLR2004 - Ada Lovelace is 8.9
        case (major, _):
            return _FAMILIES.get(major, "undefined")


def _word(value: bool) -> str:  # noqa: FBT001 - the value itself
    return "true" if value else "false"

"""The devices that a node offers to claims: one for each GPU that is given by claim.

Names of attributes and capacities are those of NVIDIA's DRA driver (kubernetes-sigs/dra-driver-nvidia-gpu,
cmd/gpu-kubelet-plugin/deviceinfo.go), and `way` and `isolation` of our own. The expression of a claim about an
attribute that a device lacks keeps the pod from being scheduled at all, so every device has every attribute, but for a
root complex that nobody knows: devices with an empty root would match each other. Bounds: kubernetes 1.36,
pkg/apis/resource/validation/validation.go.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.claims.capacities import MOST_VALUES, capacities
from gpushare_plugin.claims.claim import AllocatedDevice
from gpushare_plugin.claims.device import Attribute, Device, SemanticVersion
from gpushare_plugin.core.claimed_gpu import ClaimedGpu
from gpushare_plugin.core.gpu import Gpu, Inventory

LONGEST_TEXT = 64
"""The most bytes of the text of an attribute."""

UNKNOWN = "Unknown"
"""The brand or architecture of a GPU of which neither is known."""

_ARCHITECTURES = {3: "Kepler", 5: "Maxwell", 6: "Pascal", 9: "Hopper", 10: "Blackwell", 12: "Blackwell"}
_TENTHS = 10
_MOST_GPUS_NAMED = 16


class NodeDevices(Struct, frozen=True):
    """The devices of a node."""

    devices: tuple[Device, ...] = ()
    """The devices, in the order in which kube-scheduler tries the devices."""
    notices: tuple[str, ...] = ()
    """What cannot be offered to claims as the config says, for people."""


def node_devices(
    by_claim: Mapping[str, ClaimedGpu], inventory: Inventory, allocated: Iterable[AllocatedDevice] = ()
) -> NodeDevices:
    """Return the devices for the GPUs `by_claim`, by UUID; `allocated` is all that claims have of these devices.

    kube-scheduler gives a claim the first device that fits. So shared devices come before whole GPUs, which any request
    for memory fits, and a small whole GPU comes before a large one. GPUs that are shared alike come in the order of the
    node, so that one is filled before the next. With the policy `spread`, the emptiest come first: what claims have is
    counted in tenths of a GPU for that, so that few claims change the order.
    """
    devices = {uuid: _device(gpu, inventory) for uuid, gpu in by_claim.items()}
    spread = [devices[uuid] for uuid, gpu in by_claim.items() if gpu.policy == "spread"]
    # A node can have hundreds of claims, and each further claim has the order computed again.
    full = _fullness(spread, allocated) if spread else {}
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(map(_kind, by_claim.values())))}

    def rank(gpu: ClaimedGpu) -> tuple[int, ...]:
        if not gpu.shared:
            return 1, gpu.gpu.memory_mib, *gpu.gpu.place
        tenths = int(full.get(gpu.gpu.uuid, 0) * _TENTHS)
        return 0, kinds[_kind(gpu)], tenths, *gpu.gpu.place

    order = sorted(by_claim.values(), key=rank)
    notices = (*_too_small(order), *(notice for gpu in order for notice in _notices(gpu)))
    return NodeDevices(tuple(devices[gpu.gpu.uuid] for gpu in order), notices)


def device_name(uuid: str) -> str:
    """Return the name of the device for a GPU: a DNS label, the same for the life of the GPU."""
    return re.sub(r"[^-a-z0-9]", "-", uuid.lower())


def by_device(by_claim: Mapping[str, ClaimedGpu]) -> Mapping[str, ClaimedGpu]:
    """Return the GPUs `by_claim` by the names of their devices."""
    return {device_name(uuid): gpu for uuid, gpu in by_claim.items()}


def _kind(gpu: ClaimedGpu) -> tuple[str, ...]:
    return gpu.way, *(each.name for each in gpu.resources)


def _fullness(devices: Iterable[Device], allocated: Iterable[AllocatedDevice]) -> Mapping[str, Fraction]:
    """Return the part of each GPU that claims have, by UUID: the largest part of any capacity."""
    taken: Counter[tuple[str, str]] = Counter()
    for each in allocated:
        if not each.admin_access:
            taken.update({(each.device, name): amount for name, amount in each.consumed.items()})
    return {
        device.gpu: max(
            (
                Fraction(taken[device.name, name], capacity.amount)
                for name, capacity in device.capacities.items()
                if capacity.amount
            ),
            default=Fraction(0),
        )
        for device in devices
    }


def _device(gpu: ClaimedGpu, inventory: Inventory) -> Device:
    return Device(
        name=device_name(gpu.gpu.uuid),
        gpu=gpu.gpu.uuid,
        shared=gpu.shared,
        attributes=_attributes(gpu, inventory),
        capacities=capacities(gpu),
    )


def _attributes(claimed: ClaimedGpu, inventory: Inventory) -> Mapping[str, Attribute]:
    gpu = claimed.gpu
    capability = gpu.compute_capability
    return {
        "type": "mig" if gpu.mig else "gpu",
        "uuid": _text(gpu.uuid),
        "parentUUID": _text(gpu.card),
        "profile": _text(gpu.mig.profile if gpu.mig else ""),
        "productName": _text(gpu.name),
        "brand": _text(gpu.brand or UNKNOWN),
        "architecture": _architecture(capability),
        "cudaComputeCapability": semantic_version(capability or ()),
        "driverVersion": semantic_version(_numbers(inventory.driver_version)),
        "cudaDriverVersion": semantic_version(inventory.cuda_version),
        "resource.kubernetes.io/pciBusID": _text(_pci_address(gpu)),
        "way": claimed.way,
        "isolation": claimed.isolation,
        # NVIDIA's driver leaves an unknown root out, too, and `matchAttribute` then passes the device over.
        **({"resource.kubernetes.io/pcieRoot": _text(gpu.pci_root)} if gpu.pci_root else {}),
    }


def semantic_version(numbers: Iterable[int]) -> SemanticVersion:
    """Return a version of three numbers without leading zeros, as the API server requires; missing ones are 0."""
    return SemanticVersion(".".join(map(str, (*numbers, 0, 0, 0)[:3])))


def _numbers(version: str) -> Iterator[int]:
    """Yield the numbers at the start of a version such as `535.161.08`."""
    for part in version.split("."):
        if not (part.isascii() and part.isdecimal() and len(part) <= len("999999999")):
            return
        yield int(part)


def _text(text: str) -> str:
    """Return `text`, cut to what an attribute can have."""
    return text.encode()[:LONGEST_TEXT].decode(errors="ignore")


def _pci_address(gpu: Gpu) -> str:
    """Return the PCI address as the kernel writes it, with four digits of the domain, of which NVML writes eight."""
    return re.sub(r"^0+(?=[0-9a-f]{4}:)", "", gpu.pci_bus_id.lower())


def _architecture(capability: tuple[int, int] | None) -> str:
    """Return the architecture in the words of NVIDIA's DRA driver (go-nvlib, pkg/nvlib/device/device.go)."""
    match capability:
        case (7, minor):
            return "Volta" if minor < 5 else "Turing"  # noqa: PLR2004 - Turing is 7.5
        case (8, minor):
            return "Ampere" if minor < 9 else "Ada Lovelace"  # noqa: PLR2004 - Ada Lovelace is 8.9
        case (major, _):
            return _ARCHITECTURES.get(major, UNKNOWN)
    return UNKNOWN


def _too_small(gpus: Iterable[ClaimedGpu]) -> Iterator[str]:
    """Yield which GPUs have less memory than a claim without a size gets, in one sentence for all of them."""
    small = [each for each in gpus if each.way == "memory" and (each.default_mib or 0) > each.gpu.memory_mib]
    if small:
        labels = some_of([each.gpu.label for each in small], _MOST_GPUS_NAMED)
        most = max(each.gpu.memory_mib for each in small)
        yield (
            f"dra.default is {small[0].default_mib} MiB, and GPU {labels} has {most} MiB at most: a claim without a "
            "size gets all memory of such a GPU"
        )


def _notices(gpu: ClaimedGpu) -> Iterator[str]:
    if gpu.way == "slices" and (beyond := gpu.resources[MOST_VALUES:]):
        yield (
            f"{gpu.gpu.description}: no claim gets slices of {', '.join(each.name for each in beyond)}, because a "
            f"ResourceSlice can name {MOST_VALUES} sizes; configure fewer sizes for this GPU"
        )
    if len(gpu.gpu.name.encode()) > LONGEST_TEXT:
        yield f"{gpu.gpu.description}: the attribute productName has only the first {LONGEST_TEXT} bytes of the name"

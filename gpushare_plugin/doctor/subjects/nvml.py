"""The GPUs as NVML shows them to this process."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gpushare_plugin.base.errors import GpushareError, NoGpuLibraryError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.subjects.cards import PciGpu, of_nvidia
from gpushare_plugin.doctor.subjects.driver import KERNEL_MODULE, LIBRARIES, DriverFacts
from gpushare_plugin.gpus.source import GpuSource, read_inventory

SUBJECT = "NVML"
PATIENCE = 30.0
"""Seconds that NVML may take; a driver with sixteen cards and without persistence mode takes several."""
_CONTROL_DEVICE = Path("/dev/nvidiactl")
_AFTER_DRIVER = "do what is said of the driver first"

Misfits = Callable[[Inventory], Sequence[str]]
"""Returns what of the config does not fit the GPUs of a node, each with its place."""


class SeenGpu(Struct, frozen=True):
    """A GPU or MIG instance that NVML shows."""

    label: str
    """The index, `0:1` for an instance."""
    uuid: str
    """The UUID."""
    name: str
    """The name of the product."""
    memory_mib: int
    """The memory for programs, in MiB; 0 where the driver does not say."""
    pci_bus_id: str
    """The PCI address of the card."""
    divided: bool
    """Whether MIG mode is on, so that only instances are for containers."""


class NvmlFacts(Struct, frozen=True):
    """The answer of NVML."""

    driver: str = ""
    """The version of the driver; empty without an answer."""
    gpus: tuple[SeenGpu, ...] = ()
    """The GPUs, MIG instances included."""
    silent: tuple[tuple[str, str], ...] = ()
    """The GPUs that do not answer, each with the reason."""
    failure: str = ""
    """Why there is no answer; empty with an answer."""
    reachable: bool = True
    """Whether this process could get an answer at all: it needs the device nodes of the driver."""
    misfits: tuple[str, ...] = ()
    """What of the config does not fit these GPUs, each with its place, in the words of the daemon."""

    @property
    def only_instances(self) -> bool:
        """Whether MIG mode is on for every GPU."""
        cards = [gpu for gpu in self.gpus if ":" not in gpu.label]
        return bool(cards) and all(card.divided for card in cards)


def read_nvml(source: GpuSource, host: HostRoot, misfits: Misfits) -> NvmlFacts:
    """Ask NVML for the GPUs, for `PATIENCE` seconds; NVML that hangs or fails is a fact, not an error."""
    try:
        inventory = asyncio.run(read_inventory(source, patience=PATIENCE, overdue=_give_up))
    except GpushareError as error:
        # In a container without GPUs, NVML cannot be initialised, whatever the node is like.
        without_devices = type(error) is NoGpuLibraryError and not host.is_own and not _CONTROL_DEVICE.exists()
        return NvmlFacts(failure=str(error), reachable=not without_devices)
    return _answered(inventory, tuple(misfits(inventory)) if inventory.cards else ())


def _answered(inventory: Inventory, misfits: tuple[str, ...]) -> NvmlFacts:
    gpus = (*inventory.cards, *inventory.instances)
    return NvmlFacts(
        inventory.driver_version,
        tuple(SeenGpu(gpu.label, gpu.uuid, gpu.name, gpu.memory_mib, gpu.pci_bus_id, gpu.mig_enabled) for gpu in gpus),
        tuple((failed.label, failed.reason) for failed in inventory.failed),
        misfits=misfits,
    )


def judge_nvml(facts: NvmlFacts, driver: DriverFacts, cards: Sequence[PciGpu]) -> Iterator[Diagnosis]:
    """Yield the lines about NVML and about each GPU that does not answer or is missing.

    `driver` is the driver of the node, and `cards` are the GPUs on the PCI bus.
    """
    if facts.failure:
        yield _failed(facts, driver)
        return
    for label, reason in facts.silent:
        yield wrong(
            SUBJECT,
            f"GPU {label} does not answer: {reason}",
            "see `dmesg | grep -i xid` and NVIDIA's list of XIDs; reset the GPU (nvidia-smi --gpu-reset) while no "
            "program uses it, or reboot the node",
        )
    if facts.gpus and (missing := _missing(facts, cards)):
        yield _not_listed(missing)
    if driver.kernel and driver.kernel != facts.driver:
        yield wrong(
            SUBJECT,
            f"answers with driver {facts.driver}, but the kernel runs {driver.kernel}: expected the same version",
            "run doctor again on the node itself: the driver was changed meanwhile, or this pod has another driver"
            if driver.agrees
            else _AFTER_DRIVER,
        )
    elif facts.gpus:
        names = ", ".join(f"{gpu.label} {gpu.name}" for gpu in facts.gpus)
        yield right(SUBJECT, f"driver {facts.driver}; GPUs: {names}")
    elif not facts.silent:
        yield wrong(
            SUBJECT,
            f"answers with driver {facts.driver}, but lists no GPU",
            "see `dmesg | grep -i nvrm`: the driver may not support this GPU, or may need the open kernel module; in a "
            "pod, set NVIDIA_VISIBLE_DEVICES=all or run doctor on the node itself",
        )


def _missing(facts: NvmlFacts, cards: Sequence[PciGpu]) -> list[str]:
    """Return the addresses of GPUs that NVIDIA's kernel driver has, and NVML lists neither as GPU nor as silent.

    NVML writes an address with a longer domain (nvml.h, `nvmlPciInfo_t`). Where its addresses are not those of the
    kernel, nothing is known.
    """
    bound = {card.address.lower() for card in of_nvidia(cards)}
    listed = {gpu.pci_bus_id[-len("0000:00:00.0") :].lower() for gpu in facts.gpus}
    missing = sorted(bound - listed)
    return missing if listed <= bound and len(missing) > len(facts.silent) else []


def _not_listed(missing: Sequence[str]) -> Diagnosis:
    """Return the line about GPUs that the kernel driver has and could not start."""
    return wrong(
        SUBJECT,
        f"does not list {', '.join(missing)}, though the kernel driver nvidia has "
        f"{'these GPUs' if len(missing) > 1 else 'this GPU'}, so no pod gets {'them' if len(missing) > 1 else 'it'}",
        "see `dmesg | grep -i nvrm`, where RmInitAdapter failed means that the GPU did not start, and reboot the node. "
        "A GPU that stays away is broken, or its slot or power is. In a pod that has only some GPUs, run doctor on the "
        "node itself",
    )


def _failed(facts: NvmlFacts, driver: DriverFacts) -> Diagnosis:
    if not facts.reachable and not driver.kernel:
        return not_looked_at(
            SUBJECT, f"mend the line about the {KERNEL_MODULE} first: without its module, no GPU answers"
        )
    if not facts.reachable and driver.root is None:
        return not_looked_at(SUBJECT, f"do what is said of {LIBRARIES} first: NVML is one of these libraries")
    if not facts.reachable:
        return not_looked_at(
            SUBJECT,
            "this process has no access to the device nodes of the GPUs; `gpushare list` in the daemon's pod, or "
            "nvidia-smi on the node, shows the GPUs",
        )
    return wrong(
        SUBJECT,
        facts.failure,
        f"{'' if driver.agrees else f'{_AFTER_DRIVER}. Then '}run nvidia-smi on the node: while that fails, no pod can "
        "use a GPU, and `dmesg | grep -i nvrm` says why",
    )


def _give_up() -> None:
    raise GpushareError(
        f"NVML has not answered within {PATIENCE:g} s: a call of the driver hangs, as after a fault of a GPU"
    )

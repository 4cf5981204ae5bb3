"""The NVIDIA GPUs that the kernel lists as PCI devices, and the kernel drivers that have them.

Facts: the kernel's Documentation/ABI/testing/sysfs-bus-pci (`vendor`, `class`, `driver`). Class 0x0300 is a VGA
controller, 0x0302 a 3D controller, which has no screen (pci.ids); NVSwitches and audio functions have other classes.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.subjects.driver import KERNEL_MODULE

SUBJECT = "GPUs on the PCI bus"
NO_GPU = "this machine has no NVIDIA GPU"
"""Why parts of a machine without a GPU are not looked at."""

_DEVICES = "/sys/bus/pci/devices"
_NVIDIA = "0x10de"
_WITHOUT_SCREEN = "0x0302"
_GPU_CLASSES = ("0x0300", _WITHOUT_SCREEN)
_FOR_MACHINES = frozenset({"vfio-pci", "nvidia_vgpu_vfio", "pci-stub"})
"""Kernel drivers that give a GPU to a virtual machine."""
_OF_NVIDIA = "nvidia"
"""NVIDIA's kernel driver."""
_OF_THE_KERNEL = frozenset({"nouveau", "nova_core"})
"""The kernel's own drivers of NVIDIA's GPUs."""
_KEEPS_NOUVEAU_OUT = (
    "write `blacklist nouveau` and `options nouveau modeset=0` into /etc/modprobe.d/nouveau.conf, and make the initial "
    "RAM file system anew (update-initramfs -u, or dracut --force)"
)
"""What leaves the GPUs to NVIDIA's driver from the next boot on, as an instruction."""


class PciGpu(Struct, frozen=True):
    """An NVIDIA GPU of the PCI bus."""

    address: str
    """The PCI address, such as `0000:3b:00.0`."""
    driver: str
    """The kernel driver that has the GPU, such as `nvidia`; empty for none."""
    for_screens: bool = False
    """Whether the GPU may be there for a screen only."""


def read_cards(host: HostRoot) -> tuple[PciGpu, ...] | None:
    """Return the NVIDIA GPUs on the PCI bus; None where the kernel's list of devices is not there."""
    if not host.is_directory(_DEVICES):
        return None
    return tuple(
        PciGpu(address, _driver(host, f"{_DEVICES}/{address}"), not kind.startswith(_WITHOUT_SCREEN))
        for address in host.names(_DEVICES)
        if host.line(f"{_DEVICES}/{address}/vendor") == _NVIDIA
        and (kind := host.line(f"{_DEVICES}/{address}/class")).startswith(_GPU_CLASSES)
    )


def why_without(cards: Sequence[PciGpu] | None, module: str) -> str:
    """Return why the node has no GPU for containers, empty if it has one; `module` is the version of NVIDIA's module.

    A loaded module means GPUs, also where they are not on a PCI bus.
    """
    if module or any(card.driver not in _FOR_MACHINES for card in cards or ()):
        return ""
    if cards is None:
        return "it is not known whether this machine has GPUs, and NVIDIA's driver is not loaded"
    return "every GPU is given to virtual machines" if cards else NO_GPU


def judge_cards(cards: Sequence[PciGpu] | None) -> Iterator[Diagnosis]:
    """Yield the line about the GPUs on the PCI bus."""
    if cards is None:
        yield not_looked_at(SUBJECT, f"{_DEVICES} is not there, so it is not known which GPUs this machine has")
    elif not cards:
        yield not_looked_at(SUBJECT, NO_GPU)
    elif (own := [card.address for card in cards if card.driver in _OF_THE_KERNEL]) and not of_nvidia(cards):
        yield wrong(
            SUBJECT,
            f"a driver of the kernel itself has the GPUs {', '.join(own)}, so NVIDIA's driver cannot use these GPUs",
            f"{_KEEPS_NOUVEAU_OUT}, and reboot the node",
        )
    elif of_nvidia(cards) and (lost := [card.address for card in _lost(cards) if not card.for_screens]):
        yield wrong(SUBJECT, _in_words(cards), _brings_back(lost))
    elif not of_nvidia(cards) and any(not card.for_screens for card in _lost(cards)):
        yield not_looked_at(SUBJECT, f"{_in_words(cards)}. Mend what is wrong with the {KERNEL_MODULE} first")
    else:
        yield right(SUBJECT, _in_words(cards))


def of_nvidia(cards: Sequence[PciGpu]) -> list[PciGpu]:
    """Return the GPUs that NVIDIA's kernel driver has."""
    return [card for card in cards if card.driver == _OF_NVIDIA]


def _brings_back(lost: Sequence[str]) -> str:
    """Return what gives GPUs without a screen to NVIDIA's driver, as an instruction."""
    return (
        f"see `dmesg | grep -i nvrm`: NVIDIA's driver may be too old or too new for {', '.join(lost)}, or may not have "
        f"started such a GPU. Where the kernel's own driver has the GPU, {_KEEPS_NOUVEAU_OUT}. Then reboot the node. "
        "Give a GPU that is not for containers to vfio-pci"
    )


def _in_words(cards: Sequence[PciGpu]) -> str:
    counts = Counter(card.driver for card in cards)
    having = [
        f"{count} with the kernel driver {name}" if name else f"{count} without a kernel driver"
        for name, count in counts.items()
    ]
    given = [card.address for card in cards if card.driver in _FOR_MACHINES]
    machines = f"; given to virtual machines, and not for containers: {', '.join(given)}" if given else ""
    return f"{', '.join(having)}{machines}{_not_offered(cards)}"


def _lost(cards: Sequence[PciGpu]) -> list[PciGpu]:
    """Return the GPUs that NVIDIA's driver should have and does not have."""
    return [card for card in cards if card.driver not in {_OF_NVIDIA, *_FOR_MACHINES}]


def _not_offered(cards: Sequence[PciGpu]) -> str:
    """Return which GPUs NVIDIA's driver should have and does not have, in words; empty without such a GPU."""
    lost = [card.address for card in _lost(cards)]
    if not lost:
        return ""
    return (
        f"; gpushare does not offer {', '.join(lost)}, because NVIDIA's driver does not have "
        f"{'these GPUs' if len(lost) > 1 else 'this GPU'} (`dmesg | grep -i nvrm` may say why)"
    )


def _driver(host: HostRoot, device: str) -> str:
    return host.target(f"{device}/driver").rpartition("/")[2] if host.exists(f"{device}/driver") else ""

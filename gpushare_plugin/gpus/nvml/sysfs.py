"""The kernel's description of a host and its PCI devices, read below `/sys`; a container sees the host's `/sys`.

Facts: `numa_node` and `class` from the kernel's Documentation/ABI/testing/sysfs-bus-pci; for the model, the default
file of NVIDIA's GPU feature discovery.
"""

import re
from pathlib import Path

_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def machine(sysfs: Path) -> str:
    """Return the model of the host from the firmware (DMI); empty without DMI, as on many ARM machines."""
    return _text(sysfs / "class/dmi/id/product_name")


def numa_node(sysfs: Path, bus_id: str) -> int | None:
    """Return the NUMA node of a PCI device, None where the kernel knows no node (-1, or no such file)."""
    node = _number(sysfs, bus_id, "numa_node")
    return None if node is None or node < 0 else node


def pci_class(sysfs: Path, bus_id: str) -> int | None:
    """Return the class of a PCI device, for example 0x030200; None where the kernel does not say."""
    return _number(sysfs, bus_id, "class")


def pci_root(sysfs: Path, bus_id: str) -> str:
    """Return the PCI root complex of a PCI device, for example `pci0000:00`; empty where the kernel does not say.

    The folder of a device is a link to `/sys/devices/<root>/…`, see the kernel's Documentation/PCI/sysfs-pci.rst.
    """
    try:
        target = _device(sysfs, bus_id).readlink()
    except (OSError, ValueError):
        return ""
    return next((part for part in target.parts if _ROOT.fullmatch(part)), "")


def _number(sysfs: Path, bus_id: str, name: str) -> int | None:
    """Return the number in a file of a PCI device, None without one, or where NVML does not report the address."""
    try:
        return int(_text(_device(sysfs, bus_id) / name), 0)
    except ValueError:
        return None


def _device(sysfs: Path, bus_id: str) -> Path:
    """Return the folder of a PCI device; raises ValueError for an address that is none."""
    # NVML writes the PCI domain with eight digits, the kernel with four.
    domain, _, rest = bus_id.lower().partition(":")
    return sysfs / "bus/pci/devices" / f"{int(domain, 16):04x}:{rest}"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""

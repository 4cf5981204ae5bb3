"""The nodes of `gpushare_plugin.testing.hosts` for tests: their GPUs, and a host as the daemon sees it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.cdi.host import HostCdi
from gpushare_plugin.testing.hosts import (
    BARE,
    DRIVER,
    DRIVER_LIMITS,
    DRIVER_LIMITS_OLD_TOOLKIT,
    GPUS,
    KUBEADM_CONTAINERD_2,
    OPERATOR_25_10,
    HostDescription,
    built,
)
from tests.nodes import a_gpu

UUIDS = [gpu.uuid for gpu in GPUS]
"""The UUIDs of the GPUs on every host."""

# Without NVIDIA's generator, which `Host.with_generator` installs; nobody listens at sockets, which CDI does not need.
_HOSTS = {
    "bare": BARE,
    "kubeadm": KUBEADM_CONTAINERD_2.without("/usr/bin/nvidia-ctk"),
    "operator": OPERATOR_25_10,
    "driver-limits": DRIVER_LIMITS,
    "driver-limits-old-toolkit": DRIVER_LIMITS_OLD_TOOLKIT,
}
_GENERATORS = {"kubeadm": "usr/bin/nvidia-ctk", "operator": "usr/local/nvidia/toolkit/nvidia-ctk.real"}


def two_gpus(memory_mib: int = 40960) -> Inventory:
    """Return the GPUs of every host as NVML shows them."""
    cards = tuple(
        a_gpu(index, memory_mib, uuid=gpu.uuid, name=gpu.name, pci_bus_id=gpu.pci_bus_id)
        for index, gpu in enumerate(GPUS)
    )
    return Inventory(cards, driver_version=DRIVER)


class Host:
    """A described host below a folder, as a container sees it where the chart mounts parts of the host."""

    def __init__(self, name: str, folder: Path, *, without: Sequence[str] = ()) -> None:
        """Build the host called `name` in `folder`, without some of its files and folders."""
        self.root = folder / name
        self._generator = _GENERATORS.get(name)
        # The chart makes the directory where the host has none.
        host = (_HOSTS[name] + HostDescription(directories=("/run/cdi",))).without(*without)
        with built(replace(host, sockets=()), self.root):
            pass
        self.spec_dirs = self.root / "etc/cdi", self.root / "run/cdi"
        """The directories of CDI specifications."""
        driver = "/run/nvidia/driver" if name == "operator" else "/"
        self.driver_here = self.root / driver.removeprefix("/")
        # Programs of a host whose driver has a root of its own are below /host.
        (self.root / "host").symlink_to(self.root)
        self.flags: dict[str, object] = {
            "nvidiaDriverRoot": driver,
            "nvidiaDevRoot": "/",
            "plugin": {"deviceListStrategy": "cdi-cri", "containerDriverRoot": str(self.driver_here)},
        }

    @property
    def own(self) -> Path:
        """The specification of gpushare."""
        return self.spec_dirs[1] / "gpushare-gpu.json"

    def cdi(self) -> HostCdi:
        """Return what looks at the CDI devices of this host."""
        return HostCdi(self.spec_dirs, self.root)

    def settings(self, **flags: object) -> Flags:
        """Return the flags of a config for this host, with changes."""
        return Flags.model_validate({**self.flags, **flags})

    def with_generator(self, *uuids: str) -> Path:
        """Install the stand-in for `nvidia-ctk`, which knows these GPUs; return the file with a line for each run."""
        assert self._generator is not None
        program = self.root / self._generator
        program.write_text(f"#!{sys.executable}\n{Path(__file__).with_name('nvidia_ctk.py').read_text()}")
        program.chmod(0o755)
        program.with_name("gpus").write_text("\n".join(uuids))
        return program.with_name("calls")

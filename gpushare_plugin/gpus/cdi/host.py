"""The CDI devices of the host, looked at before GPUs are offered, and held in memory for the answers to the kubelet."""

import threading
from collections.abc import Sequence
from pathlib import Path

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.cdi import OWN_KIND, CdiDevices
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.cdi.own import OwnSpec
from gpushare_plugin.gpus.cdi.reading import SpecReader
from gpushare_plugin.gpus.cdi.roots import Roots
from gpushare_plugin.sharing.ways.cdi import CdiNames


class HostCdi:
    """The CDI devices that the container runtime of this host will find."""

    def __init__(self, directories: Sequence[Path] = (), here: Path = Path("/")) -> None:
        """Look in `directories`, of which a later one counts more; without a directory, nothing is looked at.

        `here` is the root of the container of this process.
        """
        self._reader = SpecReader(directories)
        self._own = OwnSpec(directories[-1]) if directories else None
        self._here = here
        self._looking = threading.Lock()
        self.devices: CdiDevices | None = None
        """The devices at the last look; None before the first look."""

    def look(self, inventory: Inventory, flags: Flags) -> None:
        """Keep gpushare's own specification true, and look at the devices for the GPUs; may block for seconds.

        Does nothing where the config names no CDI devices: containers of an earlier config need their specification.
        The first look writes only what is missing, because the offer waits for the first look.
        """
        if self._own is None or not flags.plugin.uses_cdi:
            return
        with self._looking:
            devices = self._reader.devices(inventory.driver_version)
            if self.devices is not None or self._needed(devices, inventory, flags):
                own = {name.partition("=")[2] for name in devices.files if name.startswith(f"{OWN_KIND}=")}
                self._own.keep(inventory, Roots.of(flags, self._here), own)
                devices = self._reader.devices(inventory.driver_version)
            self.devices = replace(devices, own=self._own.trouble)

    @staticmethod
    def _needed(devices: CdiDevices, inventory: Inventory, flags: Flags) -> bool:
        """Return whether a GPU has no device in a specification of others.

        A file of gpushare that is there already may be that of a daemon which removes the file at its end. NVIDIA's
        generator describes no card in MIG mode.
        """
        others = {name: file for name, file in devices.files.items() if not name.startswith(f"{OWN_KIND}=")}
        gpus = [gpu for gpu in inventory.gpus if gpu.mig or not gpu.mig_enabled]
        return bool(CdiNames(flags, replace(devices, files=others)).missing(gpus))

    def close(self) -> None:
        """Remove gpushare's own specification; does not wait for a look under way."""
        if self._own is not None:
            self._own.remove()

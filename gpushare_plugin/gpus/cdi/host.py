"""The CDI devices of the host, looked at before GPUs are offered, and held in memory for the answers to the kubelet."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.cdi import OWN_KIND, CdiDevices
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.sharing.ways.cdi import CdiNames

if TYPE_CHECKING:
    from gpushare_plugin.gpus.cdi.own import OwnSpec
    from gpushare_plugin.gpus.cdi.reading import SpecReader


class HostCdi:
    """The CDI devices that the container runtime of this host will find."""

    def __init__(self, directories: Sequence[Path] = (), here: Path = Path("/")) -> None:
        """Look in `directories`, of which a later one counts more; without a directory, nothing is looked at.

        `here` is the root of the container of this process.
        """
        self._directories = tuple(directories)
        self._here = here
        self._looking = threading.Lock()
        self._reader: SpecReader | None = None
        self._own: OwnSpec | None = None
        self.devices: CdiDevices | None = None
        """The devices at the last look; None before the first look."""

    def look(self, inventory: Inventory, flags: Flags) -> None:
        """Keep gpushare's own specification true, and look at the devices for the GPUs; may block for seconds.

        Does nothing where the config names no CDI devices: containers of an earlier config need their specification.
        The first look writes only what is missing, because the offer waits for the first look.
        """
        if not self._directories or not flags.plugin.uses_cdi:
            return
        from gpushare_plugin.gpus.cdi.own import OwnSpec  # noqa: PLC0415 - only where containers get CDI devices
        from gpushare_plugin.gpus.cdi.reading import SpecReader  # noqa: PLC0415 - as above
        from gpushare_plugin.gpus.cdi.roots import Roots  # noqa: PLC0415 - as above

        with self._looking:
            reader = self._reader = self._reader or SpecReader(self._directories)
            own = self._own = self._own or OwnSpec(self._directories[-1])
            devices = reader.devices(inventory.driver_version)
            if self.devices is not None or self._needed(devices, inventory, flags):
                own.keep(inventory, Roots.of(flags, self._here), devices.own_uuids)
                devices = reader.devices(inventory.driver_version)
            self.devices = replace(devices, own=own.trouble)

    def preview(self, inventory: Inventory, flags: Flags) -> CdiDevices | None:
        """Return the devices that a daemon would have for the GPUs; None where containers get none. Writes nothing."""
        if not self._directories or not flags.plugin.uses_cdi:
            return None
        from gpushare_plugin.gpus.cdi.own import own_file, own_trouble  # noqa: PLC0415 - as in `look`
        from gpushare_plugin.gpus.cdi.reading import SpecReader  # noqa: PLC0415 - as above
        from gpushare_plugin.gpus.cdi.roots import Roots  # noqa: PLC0415 - as above

        with self._looking:
            reader = self._reader = self._reader or SpecReader(self._directories)
            found = reader.devices(inventory.driver_version)
        last = self._directories[-1]
        if trouble := own_trouble(last, inventory, Roots.of(flags, self._here)):
            return replace(found, own=f"the daemon could not write one: {trouble}")
        own = dict.fromkeys((f"{OWN_KIND}={gpu.uuid}" for gpu in inventory.gpus), str(own_file(last)))
        return replace(found, files={**own, **found.files})

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

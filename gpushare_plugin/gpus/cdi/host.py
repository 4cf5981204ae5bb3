"""The CDI devices of the host, looked at before GPUs are offered, and held in memory for the answers to the kubelet."""

from collections.abc import Sequence
from pathlib import Path

from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.cdi import CdiDevices
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.cdi.reading import SpecReader

SPEC_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""The directories of CDI specifications by default (cncf-tags/container-device-interface, pkg/cdi/spec-dirs.go)."""


class HostCdi:
    """The CDI devices that the container runtime of this host will find."""

    def __init__(self, directories: Sequence[Path] = ()) -> None:
        """Look in `directories`, of which a later one counts more; without a directory, nothing is looked at."""
        self._reader = SpecReader(directories)
        self.devices: CdiDevices | None = None
        """The devices at the last look; None before the first look."""

    def look(self, inventory: Inventory, flags: Flags) -> None:
        """Look at the CDI devices for the GPUs of `inventory`, where the config names CDI devices; may block."""
        if self._reader.directories and flags.plugin.uses_cdi:
            self.devices = self._reader.devices(inventory.driver_version)

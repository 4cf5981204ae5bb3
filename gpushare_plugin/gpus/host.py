"""The host beside its GPUs: its CDI devices, and its means to limit memory; looked at only as far as a config needs."""

from collections.abc import Sequence
from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.cdi import CdiDevices
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.cdi.host import HostCdi

CGROUP_ROOT = Path("/sys/fs/cgroup")
"""Where the host's tree of cgroups usually is."""
PROCFS = Path("/proc")
"""Where the kernel shows the processes of the node."""


class HostFacts(Struct, frozen=True):
    """What a plan needs to know of the host; None where no config needed a look."""

    cdi_devices: CdiDevices | None = None
    """The devices in the CDI specifications."""
    driver_limits: DriverLimits | None = None
    """The means to set driver limits."""


NO_FACTS = HostFacts()
"""The facts of a host that nobody looked at."""


class Host:
    """The host beside its GPUs, looked at before GPUs are offered; answers to the kubelet need no further look."""

    def __init__(
        self,
        cdi_spec_dirs: Sequence[Path] = (),
        *,
        cgroup_root: Path = CGROUP_ROOT,
        limits_agent: bool = False,
        here: Path = Path("/"),
    ) -> None:
        """Look for CDI specifications in directories, of which a later one counts more; no directory: nowhere.

        `cgroup_root` is where the host's tree of cgroups is mounted, `limits_agent` whether an agent sets driver
        limits, and `here` the root of the container of this process.
        """
        self._cdi = HostCdi(cdi_spec_dirs, here)
        self._roots = cgroup_root, here / "proc"
        self._limits_agent = limits_agent
        self._driver_limits: DriverLimits | None = None

    @property
    def facts(self) -> HostFacts:
        """What the last look found."""
        return HostFacts(self._cdi.devices, self._driver_limits)

    def look(self, inventory: Inventory, config: Config) -> None:
        """Look at what a config needs, and keep gpushare's own CDI specification true; may block for seconds."""
        self._cdi.look(inventory, config.flags)
        self._driver_limits = self._limits(inventory, config, self._cdi.devices) or self._driver_limits

    def preview(self, inventory: Inventory, config: Config) -> HostFacts:
        """Return what a daemon with this config would find, and write nothing; may block."""
        devices = self._cdi.preview(inventory, config.flags)
        return HostFacts(devices, self._limits(inventory, config, devices))

    def close(self) -> None:
        """Remove gpushare's own CDI specification; does not wait for a look under way."""
        self._cdi.close()

    def _limits(self, inventory: Inventory, config: Config, devices: CdiDevices | None) -> DriverLimits | None:
        if not config.sharing.includes_driver:
            return None
        from gpushare_plugin.gpus.driver_limits import means_of  # noqa: PLC0415 - only where a config names `driver`

        return means_of(inventory, config.flags, devices, *self._roots, agent=self._limits_agent)

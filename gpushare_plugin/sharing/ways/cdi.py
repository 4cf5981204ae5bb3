"""The CDI device that stands for a GPU: NVIDIA's where a specification has it, gpushare's own otherwise."""

from collections.abc import Iterable, Mapping, Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.findings import GPUS_TO_NAME
from gpushare_plugin.config.schema.sections import Flags, PluginFlags
from gpushare_plugin.core.cdi import NVIDIA_PLUGIN_KIND, OWN_KIND, CdiDevices
from gpushare_plugin.core.gpu import Gpu


def device_id(gpu: Gpu, plugin: PluginFlags) -> str:
    """Return what names a GPU to the container runtime, by `deviceIDStrategy`: the UUID or the index."""
    return gpu.label if plugin.device_id_strategy == "index" else gpu.uuid


class CdiNames(Struct, frozen=True):
    """The names of CDI devices for the GPUs of a node."""

    flags: Flags
    """The flags of the config."""
    devices: CdiDevices | None = None
    """The devices in the specifications of the node; None where nobody looked, as on simulated GPUs."""

    def of(self, gpu: Gpu) -> str:
        """Return the qualified name that stands for a GPU: of the config's kind where no specification has the GPU."""
        return next((name for name in self._candidates(gpu) if self._exists(name)), self._candidates(gpu)[0])

    def missing(self, gpus: Iterable[Gpu]) -> list[str]:
        """Return the names of GPUs that no specification has."""
        return [name for name in map(self.of, gpus) if not self._exists(name)]

    def extras(self) -> list[str]:
        """Return the qualified names of the driver's features that every container with a GPU gets."""
        flags = self.flags
        vendor = flags.plugin.cdi_kind.partition("/")[0]
        extras = {"gdrcopy": flags.gdrcopy_enabled, "gds": flags.gds_enabled, "mofed": flags.mofed_enabled}
        return [f"{vendor}/{mode}=all" for mode, enabled in extras.items() if enabled]

    def by_gpu(self, gpus: Iterable[Gpu]) -> Mapping[str, str]:
        """Return the qualified name for each GPU, by UUID; empty where containers get no CDI devices."""
        return {gpu.uuid: self.of(gpu) for gpu in gpus} if self.flags.plugin.uses_cdi else {}

    def notices(self, gpus: Sequence[Gpu]) -> list[str]:
        """Return warnings about devices that the container runtime will not find; empty without CDI devices."""
        if self.devices is None or not self.flags.plugin.uses_cdi:
            return []
        missing = [*self.missing(gpus), *(name for name in self.extras() if not self._exists(name))]
        return [*self.devices.unusable, *([self._unresolvable(self.devices, missing)] if missing else [])]

    def _candidates(self, gpu: Gpu) -> tuple[str, ...]:
        plugin = self.flags.plugin
        name = device_id(gpu, plugin)
        kinds = dict.fromkeys((plugin.cdi_kind, NVIDIA_PLUGIN_KIND))
        # The index of a GPU can change; in gpushare's own specification, devices have lasting names only.
        return (*(f"{kind}={name}" for kind in kinds), f"{OWN_KIND}={gpu.uuid}")

    def _exists(self, name: str) -> bool:
        return self.devices is not None and name in self.devices.files

    @staticmethod
    def _unresolvable(devices: CdiDevices, missing: Sequence[str]) -> str:
        kinds = sorted({name.partition("=")[0] for name in devices.files})
        found = f"found devices of {some_of(kinds, GPUS_TO_NAME)}" if kinds else "found no device"
        own = f"; gpushare has no specification of its own: {devices.own}" if devices.own else ""
        return (
            f"no CDI specification in {' or '.join(devices.directories)} has {some_of(missing, GPUS_TO_NAME)} "
            f"({found}), so that containers which get one cannot be created (unresolvable CDI devices){own}. Generate "
            "the specification with `nvidia-ctk cdi generate`, let gpushare write its own, or set "
            "flags.plugin.deviceListStrategy to envvar (docs/cdi.md)"
        )

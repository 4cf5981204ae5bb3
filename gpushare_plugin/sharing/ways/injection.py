"""Access of a container to its GPUs, by the device-list strategies of NVIDIA's plugin, alone or combined.

Sources: `getAllocateResponse` in NVIDIA/k8s-device-plugin, internal/plugin/server.go; CDI annotation keys in the
Container Device Interface specification.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2s
from posixpath import join

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.cdi import CdiDevices
from gpushare_plugin.core.device_nodes import CONTROL_DEVICES, device_nodes
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import DeviceNode, Grant, Mount
from gpushare_plugin.sharing.ways.cdi import CdiNames, device_id

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
"""The variable that names the GPUs of a container to NVIDIA's container runtime."""

_MOUNT_ROOT = "/var/run/nvidia-container-devices"


class Injection(Struct, frozen=True):
    """Access of containers to GPUs, by the flags of the config."""

    flags: Flags
    """The flags of the config."""
    control_devices: tuple[str, ...] = CONTROL_DEVICES
    """The device nodes of CONTROL_DEVICES that exist on this node."""
    cdi_devices: CdiDevices | None = None
    """The devices in the CDI specifications of this node; None where nobody looked."""

    def grant(self, gpus: Sequence[Gpu]) -> Grant:
        """Return a grant that makes only `gpus` visible to the container.

        Raises PlacementError if the flags pass device nodes, and the device nodes of a MIG instance are unknown.
        """
        plugin = self.flags.plugin
        strategies = set(plugin.device_list_strategy)
        names = [device_id(gpu, plugin) for gpu in gpus]
        grant = Grant(environment=self._driver_features())
        self._add_cdi(grant, gpus)
        if strategies <= {"cdi-annotations", "cdi-cri"}:
            return grant
        if "envvar" in strategies:
            grant.environment[VISIBLE_DEVICES] = ",".join(names)
        if "volume-mounts" in strategies:
            # The variable names a folder with one entry for each GPU, so volume-mounts replaces the value of envvar.
            grant.environment[VISIBLE_DEVICES] = _MOUNT_ROOT
            grant.mounts += [Mount(join(_MOUNT_ROOT, name), "/dev/null") for name in names]
        if plugin.pass_device_specs:
            grant.devices += self._device_nodes(gpus)
        return grant

    def _driver_features(self) -> dict[str, str]:
        flags = self.flags
        features = {
            "NVIDIA_GDRCOPY": flags.gdrcopy_enabled,
            "NVIDIA_GDS": flags.gds_enabled,
            "NVIDIA_MOFED": flags.mofed_enabled,
        }
        return {name: "enabled" for name, enabled in features.items() if enabled}

    def _add_cdi(self, grant: Grant, gpus: Iterable[Gpu]) -> None:
        plugin = self.flags.plugin
        names = CdiNames(self.flags, self.cdi_devices)
        devices = [*map(names.of, gpus), *names.extras()]
        if "cdi-annotations" in plugin.device_list_strategy:
            # A container with several resources needs a key for each answer. The same units always get the same key.
            key = blake2s(",".join(devices).encode(), digest_size=8).hexdigest()
            grant.annotations[f"{plugin.cdi_annotation_prefix}gpushare_{key}"] = ",".join(devices)
        if "cdi-cri" in plugin.device_list_strategy:
            grant.cdi_devices += devices

    def _device_nodes(self, gpus: Iterable[Gpu]) -> list[DeviceNode]:
        root = self.flags.nvidia_dev_root or self.flags.nvidia_driver_root
        # MIG instances of one card share the device node of the card.
        paths = dict.fromkeys((*self.control_devices, *(path for gpu in gpus for path in _nodes(gpu))))
        return [DeviceNode(path, join(root, path.removeprefix("/"))) for path in paths]


def _nodes(gpu: Gpu) -> tuple[str, ...]:
    nodes = device_nodes(gpu)
    if nodes is None:
        raise PlacementError(
            f"{gpu.identity}: the driver does not list the device nodes of this MIG instance in "
            "/proc/driver/nvidia-caps/mig-minors, and a container cannot use the instance without them; set "
            "passDeviceSpecs to false"
        )
    return nodes

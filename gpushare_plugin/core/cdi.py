"""The CDI devices of a node: what the container runtime finds in the specifications on the host.

Source: the Container Device Interface, cncf-tags/container-device-interface, SPEC.md.
"""

from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct, field

OWN_KIND = "gpushare/gpu"
"""The kind of the specification that gpushare writes, with the vendor `gpushare` as in the names of our labels."""

NVIDIA_PLUGIN_KIND = "k8s.device-plugin.nvidia.com/gpu"
"""The kind of the specification that NVIDIA's device plugin writes (NVIDIA/k8s-device-plugin, internal/cdi)."""


class CdiDevices(Struct, frozen=True):
    """The devices in the CDI specifications of a node."""

    directories: tuple[str, ...] = ()
    """The directories of specifications."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The file that describes a device, by the qualified name of the device, such as `nvidia.com/gpu=GPU-…`."""
    unusable: tuple[str, ...] = ()
    """The specifications, or devices, that containers cannot use, each with the reason, for people."""
    own: str = ""
    """Why gpushare has no specification of its own on this node, for people; empty with a specification."""
    limiting: frozenset[str] = frozenset()
    """The qualified names of the devices with a hook that sets driver limits, see `LIMITS_HOOK`."""

    @property
    def own_uuids(self) -> frozenset[str]:
        """The UUIDs of the GPUs that gpushare's own specification describes."""
        return frozenset(name.partition("=")[2] for name in self.files if name.startswith(f"{OWN_KIND}="))

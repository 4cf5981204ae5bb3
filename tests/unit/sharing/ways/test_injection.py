"""Tests of `gpushare_plugin.sharing.ways.injection`."""

import pytest

from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.grant import DeviceNode, Grant, Mount
from gpushare_plugin.sharing.ways.injection import Injection
from tests.nodes import a_gpu, a_mig_node

FIRST, SECOND = a_gpu(0), a_gpu(3, minor=5)


def granted(control_devices: tuple[str, ...] = (), **flags: object) -> Grant:
    """Return what a container with two GPUs gets under these flags."""
    return Injection(Flags.model_validate(flags), control_devices).grant([FIRST, SECOND])


def test_the_variable_names_the_uuids_by_default() -> None:
    """`envvar` and `uuid` are the defaults, and nothing else is added."""
    assert granted() == Grant({"NVIDIA_VISIBLE_DEVICES": f"{FIRST.uuid},{SECOND.uuid}"})


def test_gpus_can_be_named_by_index() -> None:
    """`deviceIDStrategy: index` names GPUs by NVML's number."""
    assert granted(plugin={"deviceIDStrategy": "index"}).environment == {"NVIDIA_VISIBLE_DEVICES": "0,3"}


def test_volume_mounts_name_the_gpus_by_folder_entries() -> None:
    """Each GPU is a mount of /dev/null, and the variable names the folder, also beside `envvar`."""
    for strategy in ("volume-mounts", ["volume-mounts", "envvar"]):
        grant = granted(plugin={"deviceListStrategy": strategy})
        assert grant.environment == {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"}
        assert grant.mounts == [
            Mount(f"/var/run/nvidia-container-devices/{gpu.uuid}", "/dev/null") for gpu in (FIRST, SECOND)
        ]


def test_cdi_names_the_devices_as_nvidias_generator_does() -> None:
    """`cdi-cri` alone gives qualified names and no variable."""
    grant = granted(plugin={"deviceListStrategy": "cdi-cri"})
    assert grant == Grant(cdi_devices=[f"nvidia.com/gpu={FIRST.uuid}", f"nvidia.com/gpu={SECOND.uuid}"])


def test_cdi_annotations_have_a_stable_key_below_the_prefix() -> None:
    """The same GPUs always get the same key, others another one, and the prefix is configurable."""
    flags = {"deviceListStrategy": "cdi-annotations", "cdiAnnotationPrefix": "cdi.example.com/"}
    (key, value), *_ = granted(plugin=flags).annotations.items()
    assert key.startswith("cdi.example.com/gpushare_")
    assert value == f"nvidia.com/gpu={FIRST.uuid},nvidia.com/gpu={SECOND.uuid}"
    assert list(granted(plugin=flags).annotations) == [key]
    other = Injection(Flags.model_validate({"plugin": flags}), ()).grant([FIRST])
    assert list(other.annotations) != [key]


def test_the_cdi_kind_is_configurable() -> None:
    """Spec files of another vendor or class are found by their kind."""
    grant = granted(plugin={"deviceListStrategy": "cdi-cri", "cdiKind": "example.com/card"})
    assert grant.cdi_devices == [f"example.com/card={FIRST.uuid}", f"example.com/card={SECOND.uuid}"]


def test_strategies_can_be_combined() -> None:
    """CDI beside the variable gives both."""
    grant = granted(plugin={"deviceListStrategy": ["envvar", "cdi-cri", "cdi-annotations"]})
    assert grant.environment
    assert grant.cdi_devices
    assert grant.annotations


def test_device_nodes_are_passed_with_their_place_on_the_host() -> None:
    """`passDeviceSpecs` gives the control devices this node has and each GPU's node, below the device root."""
    plugin = {"passDeviceSpecs": True}
    assert granted(("/dev/nvidiactl",), plugin=plugin, nvidiaDevRoot="/run/nvidia/driver").devices == [
        DeviceNode("/dev/nvidiactl", "/run/nvidia/driver/dev/nvidiactl"),
        DeviceNode("/dev/nvidia0", "/run/nvidia/driver/dev/nvidia0"),
        DeviceNode("/dev/nvidia5", "/run/nvidia/driver/dev/nvidia5"),
    ]
    assert granted(plugin=plugin).devices[0] == DeviceNode("/dev/nvidia0", "/dev/nvidia0")


def test_device_nodes_are_left_to_cdi_where_only_cdi_is_used() -> None:
    """A runtime that gets CDI names adds the nodes itself."""
    assert granted(plugin={"passDeviceSpecs": True, "deviceListStrategy": "cdi-cri"}).devices == []


def test_driver_features_are_switched_on() -> None:
    """GDRCopy, GDS and MOFED are a variable each, and a CDI device each where CDI is used."""
    grant = granted(
        gdrcopyEnabled=True, gdsEnabled=True, mofedEnabled=True, plugin={"deviceListStrategy": ["envvar", "cdi-cri"]}
    )
    assert {name for name, value in grant.environment.items() if value == "enabled"} == {
        "NVIDIA_GDRCOPY",
        "NVIDIA_GDS",
        "NVIDIA_MOFED",
    }
    assert grant.cdi_devices[2:] == ["nvidia.com/gdrcopy=all", "nvidia.com/gds=all", "nvidia.com/mofed=all"]


class TestMig:
    """How a container gets to see MIG instances."""

    node = a_mig_node(("1g.5gb", "3g.20gb"), ("1g.5gb",))

    def granted(self, **plugin: object) -> Grant:
        """Return what a container with all three instances gets."""
        flags = Flags.model_validate({"plugin": plugin})
        return Injection(flags, ("/dev/nvidiactl",)).grant(self.node.instances)

    def test_an_instance_is_named_by_its_uuid(self) -> None:
        """In the variable, as a mount, and as a CDI device."""
        uuids = [gpu.uuid for gpu in self.node.instances]
        assert self.granted().environment == {"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}
        mounts = self.granted(deviceListStrategy="volume-mounts").mounts
        assert [mount.container_path for mount in mounts] == [
            f"/var/run/nvidia-container-devices/{uuid}" for uuid in uuids
        ]
        assert self.granted(deviceListStrategy="cdi-cri").cdi_devices == [f"nvidia.com/gpu={uuid}" for uuid in uuids]

    def test_an_instance_is_named_by_card_and_number(self) -> None:
        """With `deviceIDStrategy: index`, as NVIDIA's runtime and CDI generator name it."""
        assert self.granted(deviceIDStrategy="index").environment == {"NVIDIA_VISIBLE_DEVICES": "0:0,0:1,1:0"}
        cdi = self.granted(deviceIDStrategy="index", deviceListStrategy="cdi-cri").cdi_devices
        assert cdi == ["nvidia.com/gpu=0:0", "nvidia.com/gpu=0:1", "nvidia.com/gpu=1:0"]

    def test_device_nodes_of_an_instance_are_those_of_card_and_capabilities(self) -> None:
        """`passDeviceSpecs` gives the node of each card once, and two capability nodes for each instance."""
        capabilities = [gpu.mig.capabilities for gpu in self.node.instances if gpu.mig and gpu.mig.capabilities]
        (first, second, third) = ([f"/dev/nvidia-caps/nvidia-cap{number}" for number in each] for each in capabilities)
        devices = self.granted(passDeviceSpecs=True).devices
        assert [device.container_path for device in devices] == [
            *("/dev/nvidiactl", "/dev/nvidia0", *first, *second),
            *("/dev/nvidia1", *third),
        ]
        assert all(device.host_path == device.container_path for device in devices)

    def test_unknown_device_nodes_are_refused_where_they_are_needed(self) -> None:
        """A container that lacks them cannot use the instance; without `passDeviceSpecs` the runtime finds them."""
        (mig,) = [gpu.mig for gpu in self.node.instances[:1]]
        assert mig is not None
        unknown = replace(self.node.instances[0], mig=replace(mig, capabilities=None))
        for plugin in ({}, {"passDeviceSpecs": True, "deviceListStrategy": "cdi-cri"}):
            assert Injection(Flags.model_validate({"plugin": plugin}), ()).grant([unknown]).devices == []
        with pytest.raises(PlacementError, match="mig-minors"):
            Injection(Flags.model_validate({"plugin": {"passDeviceSpecs": True}}), ()).grant([unknown])

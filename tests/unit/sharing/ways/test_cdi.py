"""Tests of `gpushare_plugin.sharing.ways.cdi`."""

import pytest

from gpushare_plugin.config.schema.sections import Flags
from gpushare_plugin.core.cdi import CdiDevices
from gpushare_plugin.sharing.ways.cdi import CdiNames
from tests.nodes import a_gpu, a_mig_node

GPU, OTHER = a_gpu(0), a_gpu(1)
OWN, NVIDIAS = f"gpushare/gpu={GPU.uuid}", f"nvidia.com/gpu={GPU.uuid}"
OF_THE_PLUGIN = f"k8s.device-plugin.nvidia.com/gpu={GPU.uuid}"


def names(*devices: str, own: str = "", flags: dict[str, object] | None = None, **plugin: object) -> CdiNames:
    """Return the names on a node whose specifications have these devices."""
    plugin = {"deviceListStrategy": "cdi-cri", **plugin}
    found = CdiDevices(("/etc/cdi", "/var/run/cdi"), dict.fromkeys(devices, "a.json"), own=own)
    return CdiNames(Flags.model_validate({"plugin": plugin, **(flags or {})}), found)


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ((OWN, OF_THE_PLUGIN, NVIDIAS), NVIDIAS),
        ((OWN, OF_THE_PLUGIN), OF_THE_PLUGIN),
        ((OWN, "management.nvidia.com/gpu=all", "nvidia.com/gpu=0"), OWN),
        (("management.nvidia.com/gpu=all",), NVIDIAS),
    ],
)
def test_nvidias_device_is_used_where_there_is_one_and_our_own_otherwise(devices: tuple[str, ...], name: str) -> None:
    """NVIDIA's specifications come first; without any device, the name is that of the config's kind."""
    assert names(*devices).of(GPU) == name


def test_the_kind_of_the_config_comes_before_all_others() -> None:
    """Whoever has generated a specification of another kind gets its devices."""
    found = names(OWN, NVIDIAS, f"example.com/gpu={GPU.uuid}", cdiKind="example.com/gpu")
    assert found.of(GPU) == f"example.com/gpu={GPU.uuid}"


def test_a_name_by_index_is_only_in_specifications_of_others() -> None:
    """`deviceIDStrategy: index` names a device of NVIDIA's by index; our own is by UUID, which does not change."""
    assert names("nvidia.com/gpu=0", OWN, deviceIDStrategy="index").of(GPU) == "nvidia.com/gpu=0"
    assert names(NVIDIAS, OWN, deviceIDStrategy="index").of(GPU) == OWN


def test_a_mig_instance_has_a_device_of_its_own() -> None:
    """An instance that is newer than NVIDIA's specification gets our own device."""
    first, second = a_mig_node(("1g.5gb", "1g.5gb")).instances
    found = names(f"nvidia.com/gpu={first.uuid}", f"gpushare/gpu={first.uuid}", f"gpushare/gpu={second.uuid}")
    assert found.by_gpu([first, second]) == {
        first.uuid: f"nvidia.com/gpu={first.uuid}",
        second.uuid: f"gpushare/gpu={second.uuid}",
    }


def test_a_device_that_no_specification_has_is_told_with_consequence_and_remedy() -> None:
    """What is missing, what is there instead, why there is none of our own, what fails, and what to do."""
    (told,) = names(NVIDIAS, own="/var/run/cdi does not exist").notices([GPU, OTHER])
    assert told == (
        f"no CDI specification in /etc/cdi or /var/run/cdi has nvidia.com/gpu={OTHER.uuid} (found devices of "
        "nvidia.com/gpu), so that containers which get one cannot be created (unresolvable CDI devices); gpushare has "
        "no specification of its own: /var/run/cdi does not exist. Generate the specification with `nvidia-ctk cdi "
        "generate`, let gpushare write its own, or set flags.plugin.deviceListStrategy to envvar (docs/cdi.md)"
    )
    assert "(found no device)" in names().notices([GPU])[0]
    assert names(NVIDIAS).notices([GPU]) == []


def test_a_missing_device_of_the_drivers_features_is_told() -> None:
    """GDRCopy, GPUDirect Storage and OFED have specifications of their own, which gpushare does not write."""
    (told,) = names(NVIDIAS, flags={"gdsEnabled": True}).notices([GPU])
    assert "has nvidia.com/gds=all (" in told


def test_nothing_is_told_without_cdi_and_without_a_look() -> None:
    """Other strategies need no specification, and on simulated GPUs nobody looked."""
    assert names(deviceListStrategy="envvar").notices([GPU]) == []
    assert names(deviceListStrategy="envvar").by_gpu([GPU]) == {}
    flags = Flags.model_validate({"plugin": {"deviceListStrategy": "cdi-cri"}})
    assert CdiNames(flags).notices([GPU]) == []
    assert CdiNames(flags).of(GPU) == NVIDIAS

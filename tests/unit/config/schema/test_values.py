"""Memory units and device selections."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpushare_plugin.config.schema.values import (
    AllDevices,
    DeviceCount,
    DeviceList,
    Devices,
    MemoryUnit,
    parse_devices,
    plain_devices,
)

UUID = "b1028956-cfa2-0990-bf4a-5da9abb51763"


@pytest.mark.parametrize(
    ("text", "mib", "spelling"),
    [
        ("GiB", 1024, "GiB"),
        ("MiB", 1, "MiB"),
        ("1GiB", 1024, "GiB"),
        ("2GiB", 2048, "2GiB"),
        ("256MiB", 256, "256MiB"),
        ("1024MiB", 1024, "GiB"),
        ("1536MiB", 1536, "1536MiB"),
    ],
)
def test_units_have_one_shortest_spelling(text: str, mib: int, spelling: str) -> None:
    """What is read is MiB; what is written is the shortest text for it."""
    assert MemoryUnit.parse(text) == MemoryUnit(mib)
    assert str(MemoryUnit(mib)) == spelling


@given(st.integers(min_value=1, max_value=10**8))
def test_every_unit_reads_back(mib: int) -> None:
    """Spelling and reading are inverse."""
    assert MemoryUnit.parse(str(MemoryUnit(mib))) == MemoryUnit(mib)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("GB", "GiB"),
        ("Gi", "GiB"),
        ("gib", "GiB"),
        ("G", "GiB"),
        ("0MiB", "MiB"),
        ("256MB", "256MiB"),
        ("256 MiB", "256MiB"),
        ("1.5GiB", "1536MiB"),
        ("0.25TiB", "256GiB"),
        ("4096KiB", "4MiB"),
        ("02GiB", "2GiB"),
        (512, "512MiB"),
        ("512", "512MiB"),
    ],
)
def test_the_error_of_a_wrong_unit_names_the_nearest_right_unit(wrong: object, right: str) -> None:
    """A gigabyte is not a gibibyte: what is meant is asked, not guessed."""
    with pytest.raises(ValueError, match=f'did you mean "{right}"'):
        MemoryUnit.parse(wrong)


@pytest.mark.parametrize(
    "wrong", ["", "lots", "100TiB", "-1GiB", True, None, [], {}, 1e300, float("nan"), float("inf"), 10**400]
)
def test_the_error_of_a_text_that_is_no_amount_names_only_the_allowed_forms(wrong: object) -> None:
    """Nothing is suggested where nothing is near, and nothing else than ValueError is raised."""
    with pytest.raises(ValueError, match="allowed: GiB, MiB or a multiple"):
        MemoryUnit.parse(wrong)


@pytest.mark.parametrize(
    ("value", "devices"),
    [
        ("all", AllDevices()),
        (3, DeviceCount(3)),
        ([0, 2], DeviceList(("0", "2"))),
        (["0", "1:3"], DeviceList(("0", "1:3"))),
        ([f"GPU-{UUID}", f"MIG-{UUID}"], DeviceList((f"GPU-{UUID}", f"MIG-{UUID}"))),
        ([f"MIG-GPU-{UUID}/3/0"], DeviceList((f"MIG-GPU-{UUID}/3/0",))),
    ],
)
def test_every_form_nvidia_documents_is_read(value: object, devices: Devices) -> None:
    """`all`, a count, or a list of indices, MIG indices and UUIDs, old MIG names included."""
    assert parse_devices(value) == devices
    assert parse_devices(plain_devices(devices)) == devices


@pytest.mark.parametrize("value", ["ALL", "none", 0, -1, True, None, 1.5, [], {}, {"all": True}])
def test_selections_of_nothing_or_of_a_wrong_kind_are_refused(value: object) -> None:
    """A selection of nothing is refused like one of a wrong kind."""
    with pytest.raises(ValueError, match=r"[aA]llowed: all, a count of 1 or more, or a list"):
        parse_devices(value)


@pytest.mark.parametrize(("value", "right"), [("ALL", "all"), ("*", "all"), ("0", "[0]"), ("0:1", "[0:1]")])
def test_the_error_of_a_nearly_right_selection_names_the_right_selection(value: object, right: str) -> None:
    """A single device still stands in a list."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the message is looked at below
        parse_devices(value)
    assert f'did you mean "{right}"' in str(refusal.value)


def test_every_wrong_device_is_reported_at_its_index() -> None:
    """A list with two wrong entries gives two problems."""
    with pytest.raises(ValidationError) as refusal:
        parse_devices([0, "x", 1, f"gpu-{UUID}", True])
    assert [error["loc"] for error in refusal.value.errors()] == [(1,), (3,), (4,)]
    assert f'did you mean "GPU-{UUID}"' in str(refusal.value)


@pytest.mark.parametrize("value", [[0, 0], [0, "0"], [f"GPU-{UUID}", f"GPU-{UUID}"]])
def test_a_device_that_is_named_twice_is_refused(value: object) -> None:
    """Naming a device twice is a slip, whichever way it is spelled."""
    with pytest.raises(ValueError, match="twice"):
        parse_devices(value)

"""Tests of `gpushare_plugin.slices.slice`: which resources are slices, spelled both ways."""

import pytest

from gpushare_plugin.slices.slice import (
    MigPlace,
    Slice,
    SliceError,
    mig_place,
    misspelt,
    named_slice,
    slice_of,
)

SPELLED = [
    ("nvidia.com/gpu-10gb", Slice("mps", "10gb"), 10),
    ("nvidia.com/mig-3g.20gb", Slice("mig", "3g.20gb"), 20),
    ("nvidia.com/mig-1g.5gb.me", Slice("mig", "1g.5gb+me"), 5),
    ("nvidia.com/mig-1g.24gb-me", Slice("mig", "1g.24gb-me"), 24),
    ("nvidia.com/mig-1g.24gb.me.all", Slice("mig", "1g.24gb+me.all"), 24),
]


@pytest.mark.parametrize(("resource", "meant", "gib"), SPELLED)
def test_a_resource_names_a_slice_and_a_slice_its_resource(resource: str, meant: Slice, gib: int) -> None:
    """The name of a resource says which slice it is and how much memory it has, and the slice names the resource."""
    assert slice_of(resource) == meant
    assert meant.resource == resource
    assert meant.gib == gib


OTHERS = [
    "",
    "cpu",
    "aliyun.com/gpu-mem",
    "nvidia.com/gpu",
    "nvidia.com/gpu-",
    "nvidia.com/gpu-0gb",
    "nvidia.com/gpu-10GB",
    "nvidia.com/gpu-10gb.shared",
    "nvidia.com/mig-1c.3g.20gb",
    "nvidia.com/mig-small",
]


@pytest.mark.parametrize("resource", OTHERS)
def test_whole_gpus_and_memory_units_are_no_slices(resource: str) -> None:
    """Whole GPUs, shared GPUs, memory units and compute instances that are smaller than theirs are no slices."""
    assert slice_of(resource) is None


@pytest.mark.parametrize("size", ["99999gb", "0gb", "010gb", "1.5gb", "10gib", "10GB", "10g", "10Gi", "10240mb"])
def test_a_size_that_is_misspelt_is_no_slice_and_is_known_as_one(size: str) -> None:
    """Whoever asks for it means a slice, and can be told how one is spelled."""
    resource = f"nvidia.com/gpu-{size}"
    assert (slice_of(resource), misspelt(resource)) == (None, "mps")


@pytest.mark.parametrize(
    "profile", ["1g5gb", "1g.5g", "1g.5GB", "1G.5gb", "1g.5gib", "1g-5gb", "1g.05gb", "1.5gb", "3g.20gB.me", "0g.5gb"]
)
def test_a_mig_profile_that_is_misspelt_is_known_as_one(profile: str) -> None:
    """As with sizes."""
    resource = f"nvidia.com/mig-{profile}"
    assert (slice_of(resource), misspelt(resource)) == (None, "mig")


@pytest.mark.parametrize(
    "resource",
    [
        "nvidia.com/gpu-10gb",
        "nvidia.com/gpu-10gb.shared",
        "nvidia.com/gpu-a100",
        "x.y/10",
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/mig-1g.5gb.me",
        "nvidia.com/mig-1c.3g.20gb",
        "nvidia.com/mig-small",
    ],
)
def test_names_that_end_like_no_size_are_not_misspelt(resource: str) -> None:
    """They are slices, or mean something else."""
    assert misspelt(resource) is None


def test_places_of_mig_instances_are_spelled_one_way() -> None:
    """`3g.20gb@4` is the profile and the first memory slice, there and back."""
    assert mig_place("3g.20gb@4") == MigPlace("3g.20gb", 4)
    assert str(MigPlace("1g.5gb+me", 0)) == "1g.5gb+me@0"
    assert named_slice("1g.5gb+me@0") == Slice("mig", "1g.5gb+me")
    assert named_slice("10gb") == Slice("mps", "10gb")


@pytest.mark.parametrize(
    "text", ["", "10", "10GB", "3g.20gb", "3g.20gb@", "3g.20gb@-1", "3g.20gb@04", "@1", "1c.2g.10gb@0"]
)
def test_a_text_that_names_no_slice_is_refused_with_what_was_found(text: str) -> None:
    """A text that is neither a size nor a place raises an error that shows it."""
    with pytest.raises(SliceError) as caught:
        named_slice(text)
    assert repr(text) in str(caught.value)

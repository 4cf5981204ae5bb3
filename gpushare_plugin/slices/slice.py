"""Slices of a GPU, and their names: as resources, and in annotations.

Slices under MPS have the names of nos: resource `nvidia.com/gpu-10gb`, and `10gb` in annotations. MIG instances have
the resource of NVIDIA's plugin, `nvidia.com/mig-3g.20gb`, and the profile of the driver, `3g.20gb`. In annotations, the
name of a MIG instance includes its place on the card: `3g.20gb@4`.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct

SliceKind = Literal["mps", "mig"]
"""How a GPU is divided: the memory between clients of MPS, or the card into MIG instances."""

_MPS_RESOURCE, _MIG_RESOURCE = "nvidia.com/gpu-", "nvidia.com/mig-"
SIZE = re.compile(r"([1-9][0-9]{0,3})gb", re.ASCII)
"""The size of a slice under MPS, in GiB."""
_LIKE_A_SIZE = re.compile(r"[0-9][0-9.]*[kmgt]i?b?", re.ASCII | re.IGNORECASE)
_LIKE_A_PROFILE = re.compile(r"[0-9]{1,2}g?[-._]?[0-9][0-9.]*[kmgt]?i?b?([-.+].*)?", re.ASCII | re.IGNORECASE)
_PROFILE = re.compile(r"[1-9][0-9]?g\.[1-9][0-9]{0,3}gb([-+][a-z0-9][-a-z0-9.]{0,31})?", re.ASCII)
_PROFILE_IN_RESOURCE = re.compile(r"([1-9][0-9]?g\.[1-9][0-9]{0,3}gb)([-.][a-z0-9][-a-z0-9.]{0,31})?", re.ASCII)
_PLACE = re.compile(r"(.{1,64})@(0|[1-9][0-9]{0,2})", re.ASCII)


class SliceError(GpushareError):
    """A text is neither the name of a slice nor the name of a place."""


class Slice(Struct, frozen=True, order=True, gc=False):
    """A size under MPS or a profile of MIG, as requested by pods: which GPU, and which place on it, is left open."""

    kind: SliceKind
    """How the GPU is divided."""
    name: str
    """The size (`10gb`) or the MIG profile (`3g.20gb`)."""

    @property
    def resource(self) -> str:
        """The resource to request for the slice; a `+` in a profile, as in `1g.5gb+me`, is a dot in the resource."""
        if self.kind == "mps":
            return f"{_MPS_RESOURCE}{self.name}"
        return f"{_MIG_RESOURCE}{self.name.replace('+', '.')}"

    @property
    def gib(self) -> int:
        """The memory in GiB, by the name of the slice."""
        return nominal_gib(self.name)

    @property
    def rank(self) -> tuple[int, SliceKind, str]:
        """The key to sort the slices of a pod by: the largest slice first."""
        return -self.gib, self.kind, self.name


@lru_cache(maxsize=4096)
def nominal_gib(name: str) -> int:
    """Return the GiB in the name of a size (`10gb`), a profile (`3g.20gb`) or a place (`3g.20gb@4`)."""
    return int(name.partition("gb")[0].rpartition(".")[2])


class SchedulableSlices(Struct, frozen=True):
    """The slices of a node to which pods may be scheduled, as far as the node decides."""

    kind: SliceKind
    """How the GPUs of the node are divided."""
    ids: Mapping[str, frozenset[str]]
    """The IDs of the slices, by resource."""
    withdrawn: frozenset[str] = frozenset()
    """The IDs of withdrawn slices: the kubelet can still allocate the slices, but no further pod is to be scheduled."""


class MigPlace(Struct, frozen=True, order=True):
    """The place of a MIG instance on a card."""

    profile: str
    """The profile of the instance."""
    start: int
    """The first memory slice of the instance."""

    def __str__(self) -> str:
        """Return the name of the place in annotations, such as `3g.20gb@4`."""
        return f"{self.profile}@{self.start}"


@lru_cache(maxsize=4096)
def slice_of(resource: str) -> Slice | None:
    """Return the slice that a resource stands for, None for any other resource."""
    if resource.startswith(_MPS_RESOURCE):
        size = resource.removeprefix(_MPS_RESOURCE)
        return Slice("mps", size) if SIZE.fullmatch(size) else None
    if resource.startswith(_MIG_RESOURCE) and (
        match := _PROFILE_IN_RESOURCE.fullmatch(resource.removeprefix(_MIG_RESOURCE))
    ):
        profile, attribute = match[1], match[2] or ""
        return Slice("mig", profile + (f"+{attribute[1:]}" if attribute.startswith(".") else attribute))
    return None


@lru_cache(maxsize=4096)
def misspelt(resource: str) -> SliceKind | None:
    """Return the kind of slice meant by a wrong resource name such as `nvidia.com/gpu-1.5gb`.

    None for the resources of slices, and for names unlike the resources of slices.
    """
    if slice_of(resource) is not None:
        return None
    if resource.startswith(_MPS_RESOURCE) and _LIKE_A_SIZE.fullmatch(resource.removeprefix(_MPS_RESOURCE)):
        return "mps"
    if resource.startswith(_MIG_RESOURCE) and _LIKE_A_PROFILE.fullmatch(resource.removeprefix(_MIG_RESOURCE)):
        return "mig"
    return None


def is_profile(text: str) -> bool:
    """Return whether `text` is a MIG profile open to pods: the compute instance takes all of the GPU instance."""
    return _PROFILE.fullmatch(text) is not None


@lru_cache(maxsize=4096)
def mig_place(text: str) -> MigPlace:
    """Return the place named by a text such as `3g.20gb@4`; raises SliceError."""
    if (match := _PLACE.fullmatch(text)) and _PROFILE.fullmatch(match[1]):
        return MigPlace(match[1], int(match[2]))
    raise SliceError(f"slice {text[:64]!r} found, a MIG profile and its first memory slice such as 3g.20gb@4 expected")


@lru_cache(maxsize=4096)
def named_slice(text: str, kind: SliceKind | None = None) -> Slice:
    """Return the size or profile of the slice named in an annotation, by size (`10gb`) or by place (`3g.20gb@4`).

    The place itself is dropped; `mig_place` returns it. Raises SliceError for any other text, and for a slice of
    another kind than `kind`.
    """
    if (kind or ("mig" if "@" in text else "mps")) == "mig":
        return Slice("mig", mig_place(text).profile)
    if SIZE.fullmatch(text):
        return Slice("mps", text)
    raise SliceError(f"slice {text[:64]!r} found, a size such as 10gb expected")

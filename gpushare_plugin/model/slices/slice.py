"""Which resources are slices of a GPU, and how a slice is spelled: as a resource, and in annotations.

Slices under MPS are `nvidia.com/gpu-10gb` and `10gb`, the names of nos. MIG instances are `nvidia.com/mig-3g.20gb`, as
NVIDIA's plugin names them, `3g.20gb` as the driver does, and `3g.20gb@4` with their place on the card.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.structs import Struct

Kind = Literal["mps", "mig"]
"""How a GPU is divided: its memory between clients of MPS, or the card into MIG instances."""

_MPS_RESOURCE, _MIG_RESOURCE = "nvidia.com/gpu-", "nvidia.com/mig-"
SIZE = re.compile(r"([1-9][0-9]{0,3})gb", re.ASCII)
"""The size of a slice under MPS, in GiB."""
_LIKE_A_SIZE = re.compile(r"[0-9][0-9.]*[kmgt]i?b?", re.ASCII | re.IGNORECASE)
_LIKE_A_PROFILE = re.compile(r"[0-9]{1,2}g?[-._]?[0-9][0-9.]*[kmgt]?i?b?([-.+].*)?", re.ASCII | re.IGNORECASE)
_PROFILE = re.compile(r"[1-9][0-9]?g\.[1-9][0-9]{0,3}gb([-+][a-z0-9][-a-z0-9.]{0,31})?", re.ASCII)
_PROFILE_IN_RESOURCE = re.compile(r"([1-9][0-9]?g\.[1-9][0-9]{0,3}gb)([-.][a-z0-9][-a-z0-9.]{0,31})?", re.ASCII)
_PLACE = re.compile(r"(.{1,64})@(0|[1-9][0-9]{0,2})", re.ASCII)


class SliceError(GpushareError):
    """A text is not the name of a slice, or of the place of one."""


class Slice(Struct, frozen=True, order=True, gc=False):
    """A slice of a GPU as pods ask for it: `name` is its size (`10gb`) or its MIG profile (`3g.20gb`)."""

    kind: Kind
    name: str

    @property
    def resource(self) -> str:
        """The resource by which a container asks for it; a `+` of a profile, as in `1g.5gb+me`, is a dot there."""
        if self.kind == "mps":
            return f"{_MPS_RESOURCE}{self.name}"
        return f"{_MIG_RESOURCE}{self.name.replace('+', '.')}"

    @property
    def gib(self) -> int:
        """Its memory in GiB, as its name says."""
        return nominal_gib(self.name)

    @property
    def rank(self) -> tuple[int, Kind, str]:
        """What slices of a pod are sorted by: the largest first."""
        return -self.gib, self.kind, self.name


@lru_cache(maxsize=4096)
def nominal_gib(name: str) -> int:
    """Return the GiB that a size (`10gb`), a profile (`3g.20gb`) or a place (`3g.20gb@4`) names."""
    return int(name.partition("gb")[0].rpartition(".")[2])


class SchedulableSlices(Struct, frozen=True):
    """The slices of one kind to which pods may be scheduled, as far as their node decides: IDs by resource.

    `withdrawn` are those that can still be allocated, and to which no further pod is to be scheduled.
    """

    kind: Kind
    ids: Mapping[str, frozenset[str]]
    withdrawn: frozenset[str] = frozenset()


class MigPlace(Struct, frozen=True, order=True):
    """Where a MIG instance is on its card: from memory slice `start` on; `3g.20gb@4` in annotations."""

    profile: str
    start: int

    def __str__(self) -> str:
        """Spell it."""
        return f"{self.profile}@{self.start}"


@lru_cache(maxsize=4096)
def slice_of(resource: str) -> Slice | None:
    """Return the slice that a resource stands for, None for a resource that is no slice."""
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
def misspelt(resource: str) -> Kind | None:
    """Return which kind of slice somebody means by a resource that is none, such as `nvidia.com/gpu-1.5gb`.

    None for slices, and for names that are not like those of slices.
    """
    if slice_of(resource) is not None:
        return None
    if resource.startswith(_MPS_RESOURCE) and _LIKE_A_SIZE.fullmatch(resource.removeprefix(_MPS_RESOURCE)):
        return "mps"
    if resource.startswith(_MIG_RESOURCE) and _LIKE_A_PROFILE.fullmatch(resource.removeprefix(_MIG_RESOURCE)):
        return "mig"
    return None


def is_profile(text: str) -> bool:
    """Return whether this is a MIG profile that pods can ask for: its compute instance has all of its GPU instance."""
    return _PROFILE.fullmatch(text) is not None


@lru_cache(maxsize=4096)
def mig_place(text: str) -> MigPlace:
    """Return the place that a text such as `3g.20gb@4` names; raises SliceError."""
    if (match := _PLACE.fullmatch(text)) and _PROFILE.fullmatch(match[1]):
        return MigPlace(match[1], int(match[2]))
    raise SliceError(f"slice {text[:64]!r} found, a MIG profile and its first memory slice such as 3g.20gb@4 expected")


@lru_cache(maxsize=4096)
def named_slice(text: str, kind: Kind | None = None) -> Slice:
    """Return the slice that an annotation names, by its size (`10gb`) or its place (`3g.20gb@4`).

    Raises SliceError for any other text, and for a slice of another kind than `kind`.
    """
    if (kind or ("mig" if "@" in text else "mps")) == "mig":
        return Slice("mig", mig_place(text).profile)
    if SIZE.fullmatch(text):
        return Slice("mps", text)
    raise SliceError(f"slice {text[:64]!r} found, a size such as 10gb expected")

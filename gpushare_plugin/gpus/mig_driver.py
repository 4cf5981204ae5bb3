"""The driver's interface for `gpushare mig`: reads and changes the GPU instances of a card."""

from typing import Protocol

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.slices.mig import MigProfile
from gpushare_plugin.slices.slice import MigPlace


class MigError(GpushareError):
    """The driver did not carry out a call; the message gives the reason and, where known, the remedy."""


class MigPart(Struct, frozen=True):
    """A GPU instance on a card."""

    number: int
    """The driver's ID of the GPU instance."""
    place: MigPlace
    """The profile and the first memory slice."""
    size: int
    """The number of memory slices."""
    uuids: tuple[str, ...] = ()
    """The UUIDs of the MIG instances, one for every compute instance; empty for an incomplete GPU instance."""
    users: tuple[int, ...] = ()
    """The IDs of the processes on the MIG instances."""

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether the GPU instance has any of the `size` memory slices from `start` on."""
        return start < self.place.start + self.size and self.place.start < start + size


class MigCard(Struct, frozen=True):
    """The GPU instances of a MIG-capable card."""

    uuid: str
    """The UUID of the card."""
    enabled: bool
    """Whether the card is in MIG mode."""
    pending: bool
    """Whether the card will be in MIG mode after a reset."""
    profiles: tuple[MigProfile, ...] = ()
    """The profiles listed by the driver; empty without MIG mode."""
    parts: tuple[MigPart, ...] = ()
    """The existing GPU instances; empty without MIG mode."""
    users: tuple[int, ...] = ()
    """The IDs of the processes listed for the card itself."""

    def profile(self, name: str) -> MigProfile | None:
        """Return the profile called `name`, None if the card lacks the profile."""
        return next((each for each in self.profiles if each.name == name), None)

    def at(self, place: MigPlace) -> MigPart | None:
        """Return the GPU instance with the profile and the first memory slice of `place`, None without a match."""
        return next((each for each in self.parts if each.place == place), None)


class MigDriver(Protocol):
    """Divides cards; every method may block, and may raise MigError.

    Without the needed rights, a process can at most read.
    """

    def cards(self) -> tuple[str, ...]:
        """Return the UUIDs of the MIG-capable cards."""
        ...

    def read(self, uuid: str) -> MigCard:
        """Return the GPU instances and the profiles of a card."""
        ...

    def create(self, uuid: str, place: MigPlace) -> None:
        """Create a GPU instance at `place`, and a compute instance with all compute slices of the GPU instance."""
        ...

    def complete(self, uuid: str, number: int) -> None:
        """Create the missing compute instance of a GPU instance."""
        ...

    def destroy(self, uuid: str, number: int) -> None:
        """Destroy a GPU instance and its compute instances, unless a program uses the instances."""
        ...

    def set_mode(self, uuid: str, *, enabled: bool) -> None:
        """Switch MIG mode on or off, unless a program uses the card."""
        ...

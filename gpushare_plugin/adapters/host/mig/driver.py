"""What `gpushare mig` needs of a driver: how a card is divided and can be, and to divide it in another way."""

from typing import Protocol

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.slices.mig import MigProfile
from gpushare_plugin.model.slices.slice import MigPlace


class MigError(GpushareError):
    """The driver did not do it; the message says why and what to do."""


class MigPart(Struct, frozen=True):
    """A GPU instance that a card has."""

    number: int
    """The driver's ID of the GPU instance."""
    place: MigPlace
    """Its profile and first memory slice."""
    size: int
    """Its memory slices."""
    uuids: tuple[str, ...] = ()
    """Its MIG instances, which are its compute instances: one, several, or none where it was left incomplete."""
    users: tuple[int, ...] = ()
    """The IDs of the processes that use its MIG instances."""

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether it has any of `size` memory slices from `start` on."""
        return start < self.place.start + self.size and self.place.start < start + size


class MigCard(Struct, frozen=True):
    """How a card that knows MIG mode is divided."""

    uuid: str
    """The UUID of the card."""
    enabled: bool
    """Whether the card is in MIG mode."""
    pending: bool
    """Whether the card will be in MIG mode after a reset."""
    profiles: tuple[MigProfile, ...] = ()
    """The profiles that its driver lists; none without MIG mode."""
    parts: tuple[MigPart, ...] = ()
    """The GPU instances that are there; none without MIG mode."""
    users: tuple[int, ...] = ()
    """The IDs of the processes that use the card itself."""

    def profile(self, name: str) -> MigProfile | None:
        """Return the profile of this name, None where the card has none."""
        return next((each for each in self.profiles if each.name == name), None)

    def at(self, place: MigPlace) -> MigPart | None:
        """Return the GPU instance of this profile at this place, None where there is none."""
        return next((each for each in self.parts if each.place == place), None)


class MigDriver(Protocol):
    """Something that divides cards. All methods may block and raise MigError; without rights they only read."""

    def cards(self) -> tuple[str, ...]:
        """Return the UUIDs of the cards that know MIG mode."""
        ...

    def read(self, uuid: str) -> MigCard:
        """Return how a card is divided."""
        ...

    def create(self, uuid: str, place: MigPlace) -> None:
        """Create a GPU instance at a place, with one compute instance that has all of it."""
        ...

    def complete(self, uuid: str, number: int) -> None:
        """Create the compute instance of a GPU instance that has none."""
        ...

    def destroy(self, uuid: str, number: int) -> None:
        """Destroy a GPU instance and its compute instances, unless a program uses them."""
        ...

    def set_mode(self, uuid: str, *, enabled: bool) -> None:
        """Switch MIG mode on or off, unless a program uses the card."""
        ...

"""What `gpushare mig` needs of a driver: how a card is divided and can be, and to divide it in another way."""

from typing import Protocol

from gpushare_plugin.adapters.host.mig.exchange import Profile
from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.slices.slice import MigPlace


class MigError(GpushareError):
    """The driver did not do it; the message says why and what to do."""


class MigPart(Struct, frozen=True):
    """A GPU instance of a card: `size` memory slices from `place.start` on; `number` is the driver's ID of it.

    `uuids` are its MIG instances, which are its compute instances: one, several, or none where it was left incomplete.
    `users` are the IDs of the processes that use them.
    """

    number: int
    place: MigPlace
    size: int
    uuids: tuple[str, ...] = ()
    users: tuple[int, ...] = ()

    def overlaps(self, start: int, size: int) -> bool:
        """Return whether it has any of `size` memory slices from `start` on."""
        return start < self.place.start + self.size and self.place.start < start + size


class MigCard(Struct, frozen=True):
    """How a card that knows MIG mode is divided: whether it is in that mode, and in which it will be after a reset.

    `users` are the IDs of the processes that use the card itself. Without MIG mode there are neither `profiles` nor
    `parts`.
    """

    uuid: str
    enabled: bool
    pending: bool
    profiles: tuple[Profile, ...] = ()
    parts: tuple[MigPart, ...] = ()
    users: tuple[int, ...] = ()

    def profile(self, name: str) -> Profile | None:
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

"""Where `gpushare run` and `gpushare mig` meet: files that say which MIG instances are wanted, and which there are.

`gpushare run` alone decides and writes `wanted.json`; `gpushare mig` only does it and writes `status.json`.

An order has a revision, and the status names the last one that was read: `gpushare mig` does nothing any more for an
older one. So before `gpushare run` lets a pod have an instance that an order named `removable`, it writes an order that
does not, and waits until the status names that. An instance that is made again at the same place has the same UUID; one
that is wanted is therefore never removed, whatever `removable` says, and `removable` names none that is gone.
"""

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gpushare_plugin.adapters.host.exchange import AgentStatus, Message, SharedDirectory, Uuid
from gpushare_plugin.model.slices.slice import MigPlace, SliceError, mig_place

DEFAULT_ROOT = Path("/run/gpushare/mig")


class MigRoot(SharedDirectory, frozen=True):
    """The directory that `gpushare run` and `gpushare mig` share."""

    @property
    def lock(self) -> Path:
        """Locked while `gpushare mig` lives."""
        return self.path / "gpushare-mig.lock"


def _place(text: str) -> str:
    try:
        return str(mig_place(text))
    except SliceError as error:
        raise ValueError(str(error)) from error


Place = Annotated[str, AfterValidator(_place)]
"""Profile and first memory slice of an instance, such as `3g.20gb@4`."""
InstanceUuid = Annotated[str, Field(pattern=r"^MIG-[-0-9A-Za-z/]{1,80}$")]


class _Item(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class WantedCard(_Item):
    """What a card is to be divided into; what is there besides stays, unless its UUID is in `removable`.

    `removable` are instances that no pod holds and that are not listed any more. `mig_mode` is whether the card is to
    be in MIG mode; None leaves that as it is.
    """

    uuid: Uuid
    instances: tuple[Place, ...] = ()
    removable: tuple[InstanceUuid, ...] = ()
    mig_mode: bool | None = None

    @model_validator(mode="after")
    def _refuse_twice(self) -> Self:
        if len(set(self.instances)) < len(self.instances):
            raise ValueError("the same place is listed more than once")
        return self

    @property
    def places(self) -> tuple[MigPlace, ...]:
        """Where the wanted instances are."""
        return tuple(map(mig_place, self.instances))


class MigOrder(Message):
    """What is wanted of the cards; one that is not named stays as it is. A later order has a larger `revision`."""

    revision: Annotated[int, Field(ge=0)] = 0
    gpus: tuple[WantedCard, ...] = ()

    @model_validator(mode="after")
    def _refuse_twice(self) -> Self:
        if len({gpu.uuid for gpu in self.gpus}) < len(self.gpus):
            raise ValueError("the same GPU is listed more than once")
        return self


class Profile(_Item):
    """A `MigProfile` of a card as the file has it."""

    name: str
    memory_mib: int
    compute: int
    most: int
    size: int
    starts: tuple[int, ...]


class Instance(_Item):
    """A GPU instance that is there, with the MIG instances in it: none where it was left incomplete."""

    place: str
    size: int
    uuids: tuple[str, ...] = ()


class CardStatus(_Item):
    """How a card is divided, and why something that is wanted of it is not done.

    `mig_mode` is None where the card could not be read. `pending` is the mode that it has after a reset. `created` and
    `destroyed` count instances since `gpushare mig` started.
    """

    uuid: str
    mig_mode: bool | None = None
    pending: bool | None = None
    profiles: tuple[Profile, ...] = ()
    instances: tuple[Instance, ...] = ()
    reason: str | None = None
    created: int = 0
    destroyed: int = 0


class MigStatus(AgentStatus):
    """What `gpushare mig` has done: the order that it follows, and every card that knows MIG mode.

    `trouble` is what keeps it from reading what is wanted, or the cards.
    """

    revision: int = 0
    gpus: tuple[CardStatus, ...] = ()
    trouble: str | None = None

    def card(self, uuid: str) -> CardStatus | None:
        """Return the status of a card, None where it is not known."""
        return next((each for each in self.gpus if each.uuid == uuid), None)

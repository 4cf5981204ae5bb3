"""The files exchanged by `gpushare run` and `gpushare mig`: the desired and the existing MIG instances.

`gpushare run` alone decides, and writes `wanted.json`. `gpushare mig` only carries the order out, and writes
`status.json`.

Every order has a revision. The status names the revision of the last order read: from then on, `gpushare mig` ignores
older orders. Instances listed as `removable` may be destroyed. Before a pod gets a formerly removable instance,
`gpushare run` writes an order without the instance in `removable`, and waits until the status names the new revision.
An instance created again at the same place has the same UUID. Therefore `gpushare mig` never removes a desired
instance, even if listed as `removable`, and `removable` lists only existing instances.
"""

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from gpushare_plugin.gpus.exchange import AgentStatus, Message, MessagePart, SharedDirectory, Uuid
from gpushare_plugin.slices.slice import MigPlace, SliceError, mig_place

DEFAULT_ROOT = Path("/run/gpushare/mig")
"""The default path of the MIG root."""


class MigRoot(SharedDirectory, frozen=True):
    """The MIG root, the directory shared by `gpushare run` and `gpushare mig`."""

    program: ClassVar[str] = "gpushare mig"
    title: ClassVar[str] = "MIG root"
    started_by: ClassVar[str] = "partitioning.mig.enabled"


def _place(text: str) -> str:
    try:
        return str(mig_place(text))
    except SliceError as error:
        raise ValueError(str(error)) from error


Place = Annotated[str, AfterValidator(_place)]
"""The profile and the first memory slice of an instance, for example `3g.20gb@4`."""
InstanceUuid = Annotated[str, Field(pattern=r"^MIG-[-0-9A-Za-z/]{1,80}$")]
"""The UUID of a MIG instance."""


class WantedCard(MessagePart):
    """The desired division of a card; other existing instances stay, unless listed in `removable`."""

    uuid: Uuid
    """The UUID of the card."""
    instances: tuple[Place, ...] = ()
    """The desired instances."""
    removable: tuple[InstanceUuid, ...] = ()
    """The UUIDs of instances held by no pod and no longer offered: `gpushare mig` may destroy the instances."""
    mig_mode: bool | None = None
    """Whether the card is to be in MIG mode; None leaves the mode unchanged."""

    @model_validator(mode="after")
    def _refuse_twice(self) -> Self:
        if len(set(self.instances)) < len(self.instances):
            raise ValueError("the same place is listed more than once")
        return self

    @property
    def places(self) -> tuple[MigPlace, ...]:
        """The profiles and the first memory slices of the desired instances."""
        return tuple(map(mig_place, self.instances))


class MigOrder(Message):
    """The desired division of the cards; a card without an entry stays unchanged."""

    revision: Annotated[int, Field(ge=0)] = 0
    """The number of the order; a later order has a larger number."""
    gpus: tuple[WantedCard, ...] = ()
    """The cards with a desired division."""

    @model_validator(mode="after")
    def _refuse_twice(self) -> Self:
        if len({gpu.uuid for gpu in self.gpus}) < len(self.gpus):
            raise ValueError("the same GPU is listed more than once")
        return self


class Profile(MessagePart):
    """A `MigProfile` of a card, in the form of the file."""

    name: str
    """The name, for example `3g.20gb`."""
    memory_mib: int
    """The memory of an instance in MiB."""
    compute: int
    """The compute slices of an instance."""
    most: int
    """The most instances of the profile on the card at once."""
    size: int
    """The memory slices of an instance."""
    starts: tuple[int, ...]
    """The possible first memory slices of an instance."""


class Instance(MessagePart):
    """An existing GPU instance."""

    place: str
    """The profile and the first memory slice."""
    size: int
    """The number of memory slices."""
    uuids: tuple[str, ...] = ()
    """The UUIDs of the MIG instances; empty for an incomplete GPU instance."""


class CardStatus(MessagePart):
    """The division of a card, and the reason for unfinished work."""

    uuid: str
    """The UUID of the card."""
    mig_mode: bool | None = None
    """Whether the card is in MIG mode; None until the first successful read of the card."""
    pending: bool | None = None
    """Whether the card will be in MIG mode after a reset; None until the first successful read."""
    profiles: tuple[Profile, ...] = ()
    """The profiles listed by the driver."""
    instances: tuple[Instance, ...] = ()
    """The existing GPU instances, sorted by first memory slice."""
    reason: str | None = None
    """Why the card is not divided as desired, or cannot be read; None without a problem."""
    created: int = 0
    """The number of instances created since the start of `gpushare mig`."""
    destroyed: int = 0
    """The number of instances destroyed since the start of `gpushare mig`."""


class MigStatus(AgentStatus):
    """The status of `gpushare mig`."""

    revision: int = 0
    """The revision of the last order read."""
    gpus: tuple[CardStatus, ...] = ()
    """The MIG-capable cards, and the cards named by the order."""
    trouble: str | None = None
    """Why `gpushare mig` cannot read the order or list the cards; None without a problem."""

    def card(self, uuid: str) -> CardStatus | None:
        """Return the status of a card, None for an unknown card."""
        return next((each for each in self.gpus if each.uuid == uuid), None)

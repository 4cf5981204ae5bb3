"""The steps of work on one card: no step remembers anything, and every step follows from the driver's answers.

Therefore the next attempt sees all that a failed step, or a killed process, left behind.
"""

from collections.abc import Iterator

import structlog

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.gpus.mig_driver import MigCard, MigDriver, MigError, MigPart
from gpushare_plugin.mig.exchange import WantedCard
from gpushare_plugin.slices.slice import MigPlace

_log = structlog.get_logger()


class Outcome(Struct):
    """The result of an attempt at a card."""

    card: MigCard | None = None
    """The card, read at the end of the attempt; None if the card cannot be read."""
    reasons: list[str] = []  # noqa: RUF012 - msgspec makes a new list for each object
    """Why parts of the order are not done."""
    created: int = 0
    """The number of created instances."""
    destroyed: int = 0
    """The number of destroyed instances."""

    @property
    def reason(self) -> str | None:
        """All reasons in one text; None if the order is done."""
        return "; ".join(self.reasons) or None


def divide(driver: MigDriver, wanted: WantedCard) -> Outcome:
    """Divide a card as ordered, as far as possible; may block.

    First switches MIG mode, then destroys the removable instances that are not in use, then creates the missing
    instances. A failure to create one instance does not stop the creation of another.
    """
    outcome = Outcome()
    try:
        card = _switch(driver, wanted, driver.read(wanted.uuid), outcome)
        if card.enabled:
            card = _remove(driver, wanted, card, outcome)
            card = _make(driver, wanted, card, outcome)
        elif wanted.instances and not outcome.reasons:
            outcome.reasons.append(_without_mode(card))
        outcome.card = card
    except MigError as error:
        outcome.reasons.append(str(error))
    return outcome


def _switch(driver: MigDriver, wanted: WantedCard, card: MigCard, outcome: Outcome) -> MigCard:
    """Switch MIG mode as ordered, unless the card is in use or divided; return the card after the switch."""
    if wanted.mig_mode is None or wanted.mig_mode == card.enabled:
        return card
    how = "on" if wanted.mig_mode else "off"
    if card.users or card.parts:
        outcome.reasons.append(f"MIG mode is not switched {how} while {_users(card)}")
        return card
    try:
        driver.set_mode(card.uuid, enabled=wanted.mig_mode)
    except MigError as error:
        outcome.reasons.append(str(error))
    else:
        _log.info("mig_mode_set", uuid=card.uuid, mode=how)
    return driver.read(card.uuid)


def _remove(driver: MigDriver, wanted: WantedCard, card: MigCard, outcome: Outcome) -> MigCard:
    """Destroy removable instances, unless wanted or in use; return the card after the removal."""
    gone = [part for part in card.parts if part.place not in wanted.places and _removable(part, wanted)]
    for part in gone:
        if part.users:
            users = ", ".join(map(str, part.users))
            outcome.reasons.append(f"{part.place} is not destroyed, because programs use it (processes {users})")
            continue
        try:
            driver.destroy(card.uuid, part.number)
        except MigError as error:
            outcome.reasons.append(str(error))
        else:
            outcome.destroyed += 1
            _log.info("mig_instance_destroyed", uuid=card.uuid, place=str(part.place), gpus=list(part.uuids))
    return driver.read(card.uuid) if gone else card


def _removable(part: MigPart, wanted: WantedCard) -> bool:
    """Return whether all MIG instances of a GPU instance may be destroyed; an incomplete GPU instance has none."""
    return set(part.uuids) <= set(wanted.removable)


def _make(driver: MigDriver, wanted: WantedCard, card: MigCard, outcome: Outcome) -> MigCard:
    """Create the missing instances; return the card after the creation."""
    missing = [place for place in wanted.places if (part := card.at(place)) is None or not part.uuids]
    for place in missing:
        if (reason := next(_obstacles(card, place), None)) is not None:
            outcome.reasons.append(reason)
            continue
        try:
            _make_one(driver, card, place)
        except MigError as error:
            outcome.reasons.append(str(error))
        else:
            outcome.created += 1
            _log.info("mig_instance_created", uuid=card.uuid, place=str(place))
    return driver.read(card.uuid) if missing else card


def _make_one(driver: MigDriver, card: MigCard, place: MigPlace) -> None:
    if (incomplete := card.at(place)) is not None:
        driver.complete(card.uuid, incomplete.number)
    else:
        driver.create(card.uuid, place)


def _obstacles(card: MigCard, place: MigPlace) -> Iterator[str]:
    """Yield the reasons why an instance cannot be created, as far as known without asking the driver."""
    if (profile := card.profile(place.profile)) is None:
        names = ", ".join(each.name for each in card.profiles) or "none"
        yield f"{place} is not possible: the driver lists these profiles for the GPU: {names}"
    elif place.start not in profile.starts:
        starts = ", ".join(map(str, profile.starts))
        yield f"{place} is not possible: {place.profile} can start at memory slice {starts}"
    else:
        for part in card.parts:
            if part.place != place and part.overlaps(place.start, profile.size):
                yield f"{place} has no room: {part.place} has memory slices of it, and may not be destroyed now"


def _users(card: MigCard) -> str:
    if card.users:
        return f"programs use the GPU (processes {', '.join(map(str, card.users))})"
    return f"the GPU has MIG instances ({', '.join(str(part.place) for part in card.parts)})"


def _without_mode(card: MigCard) -> str:
    if card.pending:
        return "MIG mode is on only after a reset: run nvidia-smi --gpu-reset while nothing uses the GPU, or reboot"
    return (
        "the GPU is not in MIG mode: set partitioning.migMode to manage in the config, or switch it on with "
        "nvidia-smi --multi-instance-gpu=1"
    )

"""One ledger for the device plugin and claims: a GPU belongs to one of them at a time.

From the device plugin to claims: the units of the GPU are retired, and claims get the GPU when no pod holds a unit.
From claims to the device plugin: the GPU leaves the ResourceSlices; when no allocated claim names the GPU, none is
prepared and WITHDRAWN_SECONDS have passed, its units are offered. A claim that arrives before is still prepared. A GPU
that claims are to share in another way leaves and comes back in the same steps.

Where it is not known which GPUs belong to claims, because the file or a record cannot be read, every GPU counts as one
of claims, but for those whose units pods hold. Then a GPU goes to the device plugin in the same steps as any other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.structs import Struct, field, replace
from gpushare_plugin.base.text import in_words, some_of
from gpushare_plugin.claims.claim import AllocatedClaim, ClaimRefusedError
from gpushare_plugin.core.claimed_gpu import ClaimedGpu
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedClaim
from gpushare_plugin.node.claims.given import UNKNOWN, ClaimSharing, GivenFile, NewerFileError
from gpushare_plugin.node.claims.records import UnreadableRecord
from gpushare_plugin.node.news.news import GpusGivenByClaim, GpusLeftClaims, News
from gpushare_plugin.sharing.by_claim import without
from gpushare_plugin.sharing.isolation.layer import Mode
from gpushare_plugin.sharing.plan import Plan

_log = structlog.get_logger()

WITHDRAWN_SECONDS = 30.0
"""Seconds that a GPU is out of the ResourceSlices before its units are offered: a scheduler may know it for a while."""
LOOK_EVERY = 5.0
"""Seconds between looks at GPUs that leave the claims."""
LONGEST_PAUSE = 30.0
"""The longest pause in seconds between looks at a claim that keeps a GPU, and between lists of the cluster's claims."""
_MOST_CLAIMS = 5
"""The most claims named in the reason why a GPU waits for claims."""
_KEPT = (
    "So it is not known which GPUs belong to claims: all GPUs but those with units in use stay away from the device "
    "plugin, each until it is known that no claim has the GPU"
)

Still = Callable[[], AbstractAsyncContextManager[Collection[PreparedClaim] | None]]
"""Keeps all daemons of the node from preparing claims; has the prepared claims, None where they are not known."""
AllAllocated = Callable[[], Awaitable[Iterable[AllocatedClaim]]]
"""Returns the claims that are allocated devices of this node; raises GpushareError."""


class AllocatedClaims(Protocol):
    """The claims of the cluster that are allocated devices of this node."""

    async def allocated(self, claim_id: ClaimId) -> AllocatedClaim:
        """Return a claim as the scheduler allocated the claim; raises ClaimRefusedError."""
        ...

    async def all_allocated(self) -> Iterable[AllocatedClaim]:
        """Return all these claims; raises GpushareError."""
        ...


class GivenGpu(Struct, frozen=True):
    """A GPU that belongs to claims."""

    sharing: ClaimSharing
    """How claims share the GPU."""
    claimed: ClaimedGpu | None = None
    """What a claim can get; None if the config, as the daemon found it at its start, says nothing of that."""
    mode: Mode = None
    """The mode of the GPU."""
    leaves: bool = False
    """Whether no further claim should get the GPU in this way."""


class ClaimStanding(Struct, frozen=True):
    """Who belongs to claims now, published whole."""

    gpus: Mapping[str, GivenGpu] = field(default_factory=dict)
    """The GPUs that belong to claims, by UUID."""
    known: bool = False
    """Whether the config has been compared with the GPUs that belong to claims, since the daemon started."""

    @property
    def offered(self) -> Mapping[str, ClaimedGpu]:
        """The GPUs that further claims can get, by UUID."""
        return {uuid: each.claimed for uuid, each in self.gpus.items() if each.claimed is not None and not each.leaves}

    @property
    def claimed(self) -> Mapping[str, ClaimedGpu]:
        """The GPUs for which claims are prepared, by UUID: the offered GPUs, and those of which claims may be late."""
        return {uuid: each.claimed for uuid, each in self.gpus.items() if each.claimed is not None}


class HandOver:
    """Keeps the ledger, in a file before anything follows from a change."""

    def __init__(  # noqa: PLR0913 - all that tells which GPUs belong to claims
        self,
        file: GivenFile,
        prepared: Iterable[PreparedClaim] = (),
        standing: Published[ClaimStanding] | None = None,
        news: News | None = None,
        *,
        unreadable: Iterable[UnreadableRecord] = (),
        unserved: str = "",
        others: Iterable[GivenFile] = (),
        why_not: Callable[[], str] = lambda: "",
    ) -> None:
        """Go on with what `file` and the `prepared` claims say of the GPUs that belong to claims.

        GPUs that change sides are `news`. `unreadable` are the records of further claims. `unserved` is why claims
        cannot be served, and their records are not known; then GPUs only stay where they are. `others` are the files of
        other DRA drivers. `why_not` returns why claims get no GPUs here whatever the config gives by claim, for people;
        empty where they get them.
        """
        self._file = file
        self._news = news or News()
        self._unserved = unserved
        self._others = tuple(others)
        self._of_others: Mapping[str, str] = {}
        self._why_not = why_not
        self._wanted: Mapping[str, ClaimedGpu] = {}
        self._modes: Mapping[str, Mode] = {}
        self._parts: Mapping[str, str] = {}
        found, unreadable = file.read(), tuple(unreadable)
        self._doubt = found.trouble
        self._keeps_all = not found.whole
        if not found.gpus and found.whole and (reason := unserved or _nameless(unreadable)):
            self._doubt, self._keeps_all = f"{reason}. {_KEPT}", True
        if self._doubt:
            _log.error("given_gpus_unreadable", path=str(file.path), reason=self._doubt)
        given = {
            device.gpu: ClaimSharing(device.way, device.isolation) for claim in prepared for device in claim.devices
        }
        told = (each.claim for each in unreadable if each.claim is not None)
        named = {device.gpu: UNKNOWN for claim in told for device in claim.devices}
        all_given = {**named, **given, **found.gpus}
        self._gpus = {uuid: GivenGpu(sharing, leaves=True) for uuid, sharing in all_given.items()}
        self._of_units: set[str] = set()
        self._written: Mapping[str, ClaimSharing] | None = None
        self._unwritten = ""
        self._known = False
        self._since: dict[str, float] = {}
        self._named: Mapping[str, ClaimId] = {}
        self._look_again_at = 0.0
        self._pauses = Backoff(first=LOOK_EVERY, most=LONGEST_PAUSE)
        self.standing = standing or Published(ClaimStanding())
        """Which GPUs belong to claims."""
        self._leaving: Mapping[str, str] = {}
        self._arriving: Mapping[str, str] = {}
        self._publish()

    @property
    def waiting(self) -> Mapping[str, str]:
        """Why GPUs are not shared as configured yet, by UUID."""
        reason = f"belongs to claims: {self._unserved}" if self._unserved else "may belong to claims"
        leaving = (uuid for uuid, each in self._gpus.items() if each.leaves)
        return {**dict.fromkeys(leaving, reason), **self._leaving, **self._arriving, **self._of_others}

    @property
    def notices(self) -> tuple[str, ...]:
        """Why claims get no GPUs; why it is not known which GPUs have claims, while GPUs are kept back for that."""
        kept = self._written is None or any(each.sharing == UNKNOWN for each in self._gpus.values())
        return tuple(filter(None, (self._why_not(), self._doubt if kept else "")))

    @property
    def waits_for_pods(self) -> bool:
        """Whether claims get GPUs once pods have ended that hold units."""
        return bool(self._arriving) and not self._unserved

    def resume(self, modes: Mapping[str, Mode]) -> None:
        """Take GPUs to have these modes, which they had before the daemon started, by UUID."""
        self._gpus = {uuid: replace(each, mode=modes.get(uuid)) for uuid, each in self._gpus.items()}

    # ------------------------------------------------------------------ what the device plugin asks

    def hold_back(self, plan: Plan, parts: Mapping[str, str], occupied: AbstractSet[str] = frozenset()) -> Plan:
        """Return the plan without units of the GPUs that belong to claims, and with their modes.

        `parts` are the cards of MIG instances, by UUID of the instance. `occupied` are the GPUs with units.
        """
        self._wanted = {} if self._why_not() else plan.by_claim
        self._modes, self._parts = plan.modes, parts
        self._of_others = dict(self._named_by_others(plan, occupied))
        if self._keeps_all:
            self._of_units |= self._overlapping(occupied)
            kept = {uuid for each in plan.resources for uuid in each.gpus} - self._of_units - self._gpus.keys()
            self._gpus |= dict.fromkeys(kept, GivenGpu(UNKNOWN, leaves=True))
        for uuid, each in self._gpus.items():
            self._gpus[uuid] = _followed(each, self._wanted.get(uuid), plan.modes.get(uuid))
        kept = self._overlapping((*self._gpus, *self._of_others))
        old = {uuid: each.mode for uuid, each in self._gpus.items() if each.leaves}
        return replace(plan, resources=without(plan.resources, kept), modes={**plan.modes, **old}) if kept else plan

    def stand_by(self, plan: Plan, parts: Mapping[str, str]) -> None:
        """Go by the ledger of another daemon of the node, and by the same config."""
        self.hold_back(plan, parts)
        self._known = True
        self._publish()

    def settle(self, occupied: AbstractSet[str]) -> None:
        """Give the GPUs to claims that the config gives to claims; those that are `occupied` by units have to wait."""
        if self._unserved:
            self._arriving = dict.fromkeys(self._wanted, f"is not given by claim: {self._unserved}")
            return
        taken = self._overlapping((*occupied, *self._gpus, *self._of_others))
        entering = {
            uuid: GivenGpu(_sharing(claimed), claimed, self._modes.get(uuid))
            for uuid, claimed in self._wanted.items()
            if uuid not in taken
        }
        if self._write({**self._gpus, **entering}) and entering:
            self._gpus |= entering
            self._news.publish(GpusGivenByClaim(tuple(sorted(entering))))
        self._known = True
        reason = "is given by claim when its pods end"
        if self._unwritten:
            reason = f"is not given by claim: {self._unwritten}"
        elsewhere = self._gpus.keys() | self._of_others.keys()
        self._arriving = {uuid: reason for uuid in self._wanted if uuid not in elsewhere}
        self._publish()

    def _named_by_others(self, plan: Plan, occupied: AbstractSet[str]) -> Iterator[tuple[str, str]]:
        """Yield the GPUs that may belong to claims of other DRA drivers, with the reason for people."""
        for file in self._others:
            found, reason = file.read(), f"belongs to claims of the DRA driver {file.path.parent.name}"
            if not found.whole:
                found_here = {uuid for each in plan.resources for uuid in each.gpus} | self._wanted.keys()
                kept = found_here - self._overlapping(occupied) - self._gpus.keys()
                yield from dict.fromkeys(kept, f"{reason}, maybe").items()
            yield from dict.fromkeys(found.gpus, reason).items()

    # ------------------------------------------------------------------ GPUs that leave

    async def run(
        self,
        shown: Published[frozenset[str] | None],
        name_of: Callable[[str], str],
        still: Still,
        claims: AllocatedClaims,
        changed: Callable[[], None],
    ) -> None:
        """Let GPUs leave when no claim can have them any more; call `changed` after changes. Runs until cancelled.

        `shown` are the names of the devices in the ResourceSlices, and `name_of` returns the name for a UUID.
        """
        clock = asyncio.get_running_loop().time
        async for _ in changes(self.standing, shown, every=LOOK_EVERY):
            leaving = {uuid: name_of(uuid) for uuid, each in self._gpus.items() if each.leaves}
            self._note_absent(leaving, shown.value, clock())
            if self._known:
                self._write(self._gpus)  # again, where somebody has changed or removed the file
            due, before = [uuid for uuid in leaving if self._is_due(uuid, clock())], self._leaving
            try:
                released = await self._let_go(leaving, due, still, claims)
            except GpushareError as error:
                unknown = f"belongs to claims, and it is not known which claims there are: {in_words(error)}"
                released, self._leaving = False, dict.fromkeys(leaving, unknown)
            if released or before != self._leaving:
                changed()

    async def _let_go(
        self, leaving: Mapping[str, str], due: Collection[str], still: Still, claims: AllocatedClaims
    ) -> bool:
        """Let the `due` GPUs leave that no claim can have; return whether any left. `leaving` are names of devices."""
        if not leaving:
            self._leaving = {}
            return False
        async with still() as prepared:
            self._leaving = _held(leaving, prepared)
        unheld = [leaving[uuid] for uuid in due if uuid not in self._leaving]
        named = await self._claims_by_device(unheld, claims) if unheld else {}
        soon = {uuid: "leaves the claims soon" for uuid in leaving if uuid not in due}
        async with still() as prepared:  # again: a claim may have been prepared while the API server answered
            self._leaving = {**soon, **_named(leaving, named), **_held(leaving, prepared)}
            free = [uuid for uuid in due if uuid not in self._leaving]
            if not (released := self._release(free)):
                self._leaving |= dict.fromkeys(free, f"stays with claims: {self._unwritten}")
            return released

    async def _claims_by_device(self, names: Collection[str], claims: AllocatedClaims) -> Mapping[str, ClaimId]:
        """Return a claim for each device that claims are allocated.

        Only a list of the claims of the whole cluster shows that no claim has a device. While a claim is known for each
        of `names`, these claims alone are read, further and further apart; a list follows when one is gone.
        """
        now = asyncio.get_running_loop().time()
        if self._named.keys() >= set(names):
            if now < self._look_again_at:
                return self._named
            self._look_again_at = now + self._pauses.next()
            if await self._keep(names, claims):
                return self._named
        self._named = {each.device: claim.id for claim in await claims.all_allocated() for each in claim.devices}
        if not self._named.keys() >= set(names):
            self._pauses.reset()
        self._look_again_at = now + self._pauses.next()
        return self._named

    async def _keep(self, names: Iterable[str], claims: AllocatedClaims) -> bool:
        """Return whether the known claims are still allocated the devices `names`; raises ClaimRefusedError."""
        for name in names:
            try:
                claim = await claims.allocated(self._named[name])
            except ClaimRefusedError as error:
                if error.reason == "api":
                    raise
                return False
            if all(each.device != name for each in claim.devices):
                return False
        return True

    def _note_absent(self, leaving: Mapping[str, str], shown: AbstractSet[str] | None, now: float) -> None:
        """Remember since when GPUs that leave have been out of the ResourceSlices."""
        absent = {uuid for uuid, name in leaving.items() if shown is not None and name not in shown}
        self._since = {uuid: self._since.get(uuid, now) for uuid in absent}

    def _is_due(self, uuid: str, now: float) -> bool:
        return uuid in self._since and now - self._since[uuid] >= WITHDRAWN_SECONDS

    def _release(self, free: Iterable[str]) -> bool:
        """Let GPUs leave that still leave; return whether any did."""
        gone = [uuid for uuid in free if uuid in self._gpus and self._gpus[uuid].leaves]
        if not gone or not self._write({uuid: each for uuid, each in self._gpus.items() if uuid not in gone}):
            return False
        for uuid in gone:
            del self._gpus[uuid]
        self._news.publish(GpusLeftClaims(tuple(sorted(gone))))
        self._publish()
        return True

    # ------------------------------------------------------------------ both

    def _overlapping(self, uuids: Iterable[str]) -> set[str]:
        """Return GPUs with the cards of those that are instances, and the instances of those that are cards."""
        found = set(uuids)
        cards = {self._parts[uuid] for uuid in found if uuid in self._parts}
        return found | cards | {part for part, card in self._parts.items() if card in found}

    def _write(self, gpus: Mapping[str, GivenGpu]) -> bool:
        """Say in the file which GPUs belong to claims; return whether the file says so."""
        sharing = {uuid: each.sharing for uuid, each in gpus.items()}
        if sharing == self._written and self._file.says(sharing):
            return True
        try:
            self._file.write(sharing)
        except (OSError, NewerFileError) as error:
            before, self._unwritten = self._unwritten, in_words(error)
            if self._unwritten != before:
                _log.error("given_gpus_not_written", path=str(self._file.path), reason=self._unwritten)
            return False
        # From now on, the file names every GPU that may belong to claims.
        self._written, self._unwritten, self._keeps_all = sharing, "", False
        return True

    def _publish(self) -> None:
        found = ClaimStanding(dict(self._gpus), self._known)
        if found != self.standing.value:
            self.standing.publish(found)


def _nameless(unreadable: Iterable[UnreadableRecord]) -> str:
    """Return what is wrong with records of claims on unknown GPUs; empty where all tell their claim."""
    return some_of([f"{each.path} {each.reason}" for each in unreadable if each.claim is None], _MOST_CLAIMS)


def _sharing(claimed: ClaimedGpu) -> ClaimSharing:
    return ClaimSharing(claimed.way, claimed.isolation)


def _followed(given: GivenGpu, wanted: ClaimedGpu | None, mode: Mode) -> GivenGpu:
    """Return a GPU of claims after a change of the config."""
    if wanted is None or given.sharing != _sharing(wanted):
        return given if given.leaves else replace(given, leaves=True)
    return GivenGpu(_sharing(wanted), wanted, mode)


def _holders(uuid: str, prepared: Iterable[PreparedClaim]) -> list[str]:
    return sorted(claim.id.label for claim in prepared if any(device.gpu == uuid for device in claim.devices))


def _named(leaving: Mapping[str, str], named: Mapping[str, ClaimId]) -> dict[str, str]:
    """Return the reasons of GPUs that allocated claims name; `named` are the claims by device."""
    return {
        uuid: f"leaves the claims when claim {named[name].label} is not allocated any more"
        for uuid, name in leaving.items()
        if name in named
    }


def _held(uuids: Iterable[str], prepared: Iterable[PreparedClaim] | None) -> dict[str, str]:
    if prepared is None:
        return dict.fromkeys(
            uuids, "belongs to claims, and the record of a claim cannot be read; the log names the file"
        )
    holders = {uuid: _holders(uuid, prepared) for uuid in uuids}
    return {
        uuid: f"leaves the claims when these have ended: {some_of(names, _MOST_CLAIMS)}"
        for uuid, names in holders.items()
        if names
    }

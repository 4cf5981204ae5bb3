"""Prepares claims for the kubelet: what a claim was promised counts, and is given, or is refused in words.

The order is: check, record, CDI file, record as done, answer. A daemon that ends anywhere in between leaves a claim
that counts, and that the kubelet has prepared or given back by the next daemon.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol
from weakref import WeakValueDictionary

import structlog

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import in_words
from gpushare_plugin.claims.claim import AllocatedClaim, ClaimRefusedError
from gpushare_plugin.core.escapes import is_watched
from gpushare_plugin.core.grant import Grant
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedClaim, PreparedDevice
from gpushare_plugin.node.claims.cdi_files import CdiFiles, described, qualified_name, specification
from gpushare_plugin.node.claims.records import ClaimRecordError, ClaimRecords, uid_is_usable

_log = structlog.get_logger()

WAIT_FOR_ROOM = 10.0
"""Seconds that a claim waits for memory that another claim still holds; the kubelet waits 45 s for an answer."""
WAIT_FOR_END = 5.0
"""Seconds that a claim is given back later because processes of its pods still end."""
LOOK_EVERY = 0.25
"""Seconds between looks while a claim waits: another daemon may have given a claim back."""
FOLLOW_EVERY = 1.0
"""Seconds between looks whether another daemon has prepared claims, or has given claims back."""

MOST_READS = 16
"""Claims that are read from the API server at a time."""

_PASSING = frozenset({"no-room", "not-served"})
"""The reasons of refusals that may be gone in a moment."""


class GivenGpus(Protocol):
    """The GPUs that are given by claim now, and what a claim gets of a GPU."""

    def devices(self, claim: AllocatedClaim) -> tuple[PreparedDevice, ...]:
        """Return what counts of a claim, without CDI devices; raises ClaimRefusedError."""
        ...

    def check(self, claim: PreparedClaim, claims: Collection[PreparedClaim]) -> None:
        """Raise ClaimRefusedError where a claim does not fit beside the other `claims`, or cannot be limited now."""
        ...

    def grants(self, claim: AllocatedClaim) -> Mapping[str, Grant]:
        """Return what the container of each request gets; raises ClaimRefusedError."""
        ...

    async def ready(self, claim: PreparedClaim) -> None:
        """Wait until the containers of a claim can start; raises ClaimRefusedError."""
        ...


Allocated = Callable[[ClaimId], Awaitable[AllocatedClaim]]
"""Returns a claim as the scheduler allocated the claim; raises ClaimRefusedError."""


class Preparation:
    """Prepares claims and gives them back; `prepared` has all claims that are prepared, or about to be."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a DRA driver
        self,
        driver: str,
        records: ClaimRecords,
        files: CdiFiles,
        allocated: Allocated,
        given: GivenGpus,
        pod_runs: Callable[[str], bool],
        *,
        wait_for_room: float = WAIT_FOR_ROOM,
        wait_for_end: float = WAIT_FOR_END,
    ) -> None:
        """Prepare claims of the DRA driver `driver`, as far as the GPUs that are `given` have room.

        `pod_runs` returns whether processes of a pod are known to run, by the UID of the pod. `wait_for_room` and
        `wait_for_end` are in seconds.
        """
        self._driver = driver
        self._records = records
        self._files = files
        self._allocated = allocated
        self._given = given
        self._pod_runs = pod_runs
        self._wait_for_room = wait_for_room
        self._wait_for_end = wait_for_end
        self._reads = asyncio.Semaphore(MOST_READS)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.prepared: Published[tuple[PreparedClaim, ...]] = Published(())
        """The claims that are prepared, or about to be."""
        self.refusals: Counter[str] = Counter()
        """How often claims were refused, by reason."""

    async def look(self) -> None:
        """Look at the records, which another daemon may have changed; raises ClaimRecordError."""
        async with self._records.exclusive():
            pass
        self._publish()

    async def follow(self) -> None:
        """Look at the records whenever another daemon has changed them; runs until cancelled.

        The daemon that stands by prepares claims, and the daemon that serves the node requests their MPS namespaces.
        """
        while True:
            await asyncio.sleep(FOLLOW_EVERY)
            with suppress(ClaimRecordError, OSError):  # the next call of the kubelet tells
                if not self._records.current:
                    await self.look()

    @asynccontextmanager
    async def still(self) -> AsyncIterator[Sequence[PreparedClaim] | None]:
        """Keep all daemons from changes until the block ends, which must not wait; raises ClaimRecordError.

        Yields the prepared claims, None where the record of a claim cannot be read.
        """
        async with self._records.exclusive():
            self._publish()
            yield None if self._records.unreadable else self.prepared.value

    # ------------------------------------------------------------------ what the kubelet asks for

    async def prepare(self, ids: Sequence[ClaimId]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Return the devices of each claim, or why a claim is not prepared, by UID."""
        answers = await asyncio.gather(*map(self._answer, ids))
        return {each.uid: answer for each, answer in zip(ids, answers, strict=True)}

    async def unprepare(self, ids: Sequence[ClaimId]) -> Mapping[str, str]:
        """Forget claims that no pod uses; return why a claim is not forgotten, by UID, empty for success.

        A claim that is not known is forgotten already.
        """
        answers = await asyncio.gather(*(self.forget(each.uid, each) for each in ids))
        return {each.uid: answer for each, answer in zip(ids, answers, strict=True)}

    async def forget(self, uid: str, named: ClaimId | None = None) -> str:
        """Remove what there is of a claim; return why that is not possible, empty for success.

        Where the claim is `named`, a claim with this UID and another name stays.

        The kubelet gives back the claims of a pod that was deleted by force within a minute, though containers of the
        pod still run (pkg/kubelet/cm/dra/manager.go, `reconcileLoop`): what they use counts until they have ended.
        """
        if not uid_is_usable(uid):
            return ""
        clock = asyncio.get_running_loop().time
        until = clock() + self._wait_for_end
        try:
            async with self._turn(uid):
                while running := await self._remove(uid, named):
                    if clock() >= until:
                        return running
                    await asyncio.sleep(LOOK_EVERY)
        except (ClaimRefusedError, ClaimRecordError, OSError) as error:
            return in_words(error)
        finally:
            self._publish()
        return ""

    async def _remove(self, uid: str, named: ClaimId | None) -> str:
        """Remove what there is of a claim, unless its pods still run: then return this for people."""
        async with self._records.exclusive():
            known = self._records.claims.get(uid)
            if known is not None and named is not None:
                _check_name(known.claim.id, named)
            if running := self._running(uid):
                label = known.claim.id.label if known is not None else uid
                return (
                    f"claim {label}: processes of pod {', '.join(running)} still run, and can use the GPU; the claim "
                    "is given back once they have ended"
                )
            if uid not in self._records.newer:
                self._files.remove(uid)
            self._records.remove(uid)
        if known is not None:
            _log.info("claim_unprepared", claim=known.claim.id.label, uid=uid)
        return ""

    def _running(self, uid: str) -> list[str]:
        """Return the pods of a claim of which processes run: by name, or by UID where the record cannot be read."""
        if (record := self._records.claims.get(uid)) is not None:
            return [each.name for each in record.claim.users if self._pod_runs(each.uid)]
        unreadable = self._records.unreadable.get(uid)
        return sorted(filter(self._pod_runs, unreadable.pods)) if unreadable is not None else []

    async def learn_users(self, claim: AllocatedClaim) -> None:
        """Remember the pods of a claim that is prepared, as the API server has them now.

        A pod that was known before and is not there any more counts as long as its processes run. Raises
        ClaimRecordError and OSError.
        """
        async with self._turn(claim.id.uid), self._records.exclusive():
            if (record := self._records.claims.get(claim.id.uid)) is None:
                return
            gone = (each for each in record.claim.users if each not in claim.users)
            users = (*(each for each in gone if self._pod_runs(each.uid)), *claim.users)
            if users != record.claim.users:
                self._records.write(replace(record.claim, users=users), record.cdi)
        self._publish()

    # ------------------------------------------------------------------ one claim

    async def _answer(self, id_: ClaimId) -> tuple[PreparedDevice, ...] | str:
        try:
            async with self._turn(id_.uid):
                return await self._prepared(id_)
        except ClaimRefusedError as error:
            reason, message = error.reason, str(error)
        except (ClaimRecordError, OSError) as error:
            reason, message = "files", f"claim {id_.label}: {in_words(error)}"
        finally:
            self._publish()  # a claim that was recorded counts, also where its CDI file could not be written
        self.refusals[reason] += 1
        _log.warning("claim_refused", claim=id_.label, uid=id_.uid, kind=reason, reason=message)
        return message

    async def _prepared(self, id_: ClaimId) -> tuple[PreparedDevice, ...]:
        """Return the devices of a claim, which is prepared unless it was; raises the errors of a refusal."""
        if not uid_is_usable(id_.uid):
            raise ClaimRefusedError("not-found", f"claim {id_.label}: {id_.uid!r} is not the UID of a claim")
        async with self._records.exclusive():
            if (before := self._before(id_)) is not None:
                return before
        async with self._reads:
            claim = await self._allocated(id_)
        prepared = await self._once_there_is_room(claim)
        self._publish()
        if not prepared.done:
            await self._given.ready(prepared)
            async with self._records.exclusive():
                self._finish(prepared)
        devices = prepared.devices
        _log.info(
            "claim_prepared",
            claim=id_.label,
            uid=id_.uid,
            devices=[f"{each.request}: {each.device}" for each in devices],
        )
        return devices

    def _before(self, id_: ClaimId) -> tuple[PreparedDevice, ...] | None:
        """Return the devices of a claim that was prepared, with its CDI file; None for any other claim."""
        if id_.uid in self._records.newer:
            newer = self._records.newer[id_.uid]
            raise ClaimRefusedError("files", f"claim {id_.label}: {newer.path} {newer.reason}")
        if (record := self._records.claims.get(id_.uid)) is None:
            return None
        _check_name(record.claim.id, id_)
        if not record.claim.done:
            return None
        self._files.keep(id_.uid, record.cdi)
        return record.claim.devices

    async def _once_there_is_room(self, claim: AllocatedClaim) -> PreparedClaim:
        """Prepare a claim, once no other claim holds what was promised; raises ClaimRefusedError after a while.

        The claim that is returned is done unless its containers have to wait.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self._wait_for_room
        while True:
            changed = self.prepared.replaced
            try:
                async with self._records.exclusive():
                    # Another daemon may have prepared the claim meanwhile.
                    if self._before(claim.id) is not None:
                        return self._records.claims[claim.id.uid].claim
                    return self._record(claim)
            except ClaimRefusedError as error:
                if error.reason not in _PASSING or clock() >= until:
                    raise
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await changed.wait()

    def _record(self, claim: AllocatedClaim) -> PreparedClaim:
        """Check a claim, and write its record and its CDI file; the record exists before the file, and outlives it."""
        uid = claim.id.uid
        begun = PreparedClaim(claim.id, self._given.devices(claim), done=False, users=claim.users)
        self._refuse_the_unknown(claim.id)
        self._given.check(begun, self._records.beside(begun))
        grants = self._given.grants(claim)
        document = specification(self._driver, uid, grants)
        devices = self._with_cdi(uid, _with_limits(begun.devices, grants), grants, described(document))
        namespaces = tuple(grant.namespace for grant in grants.values() if grant.namespace is not None)
        begun = replace(begun, devices=devices, namespaces=namespaces)
        self._records.write(begun, document)
        self._files.keep(uid, document)
        return begun if namespaces else self._finish(begun)

    def _refuse_the_unknown(self, id_: ClaimId) -> None:
        """Refuse a new claim while it is not known what the claim of another record holds."""
        unreadable = self._records.unreadable
        if id_.uid in unreadable:  # prepared before, and counted no less than others
            return
        for each in unreadable.values():
            if each.claim is None:
                raise ClaimRefusedError(
                    "no-room",
                    f"claim {id_.label}: {each.path} {each.reason}; until then it is not known what the claim of that "
                    "file holds, and no new claim is prepared",
                )

    def _finish(self, claim: PreparedClaim) -> PreparedClaim:
        """Record a claim as done, all of whose files exist."""
        done = replace(claim, done=True)
        self._records.write(done, self._records.claims[claim.id.uid].cdi)
        return done

    def _with_cdi(
        self, uid: str, devices: Iterable[PreparedDevice], grants: Mapping[str, Grant], own: frozenset[str]
    ) -> tuple[PreparedDevice, ...]:
        """Return devices with the CDI devices of their requests; the first device of a request has all of them."""
        names = {request: _cards(grant) for request, grant in grants.items()}
        for request, cards in names.items():
            if (name := qualified_name(self._driver, uid, request)) in own:
                cards.insert(0, name)
        return tuple(replace(each, cdi_devices=tuple(names.pop(each.request, ()))) for each in devices)

    def _turn(self, uid: str) -> asyncio.Lock:
        """Return the lock of a claim: the kubelet may call again before an earlier call of the claim has ended."""
        return self._turns.setdefault(uid, asyncio.Lock())

    def _publish(self) -> None:
        claims = tuple(each.claim for each in self._records.claims.values())
        if claims != self.prepared.value:
            self.prepared.publish(claims)


def _check_name(known: ClaimId, asked: ClaimId) -> None:
    """Raise ClaimRefusedError where a UID is asked for under another name than the claim has."""
    if known != asked:
        raise ClaimRefusedError(
            "other-claim",
            f"claim {asked.label}: the UID {asked.uid} is that of claim {known.label}, which is prepared; is the "
            "caller a kubelet?",
        )


def _with_limits(devices: Iterable[PreparedDevice], grants: Mapping[str, Grant]) -> Iterator[PreparedDevice]:
    """Yield devices with what limits the containers of their requests."""
    for each in devices:
        grant = grants[each.request]
        watched = {name: value for name, value in grant.environment.items() if is_watched(name)}
        namespace = "" if grant.namespace is None else grant.namespace.name
        yield replace(each, environment=watched, namespace=namespace)


def _cards(grant: Grant) -> list[str]:
    """Return the CDI devices of the cards. The kubelet passes the annotations of a device plugin, and no others."""
    annotated = (name for value in grant.annotations.values() for name in value.split(",") if name)
    return list(dict.fromkeys([*grant.cdi_devices, *annotated]))

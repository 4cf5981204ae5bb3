"""The records of prepared claims: a small file for each claim, below the directory of the DRA driver.

A claim that was prepared gets the same answer again, whatever happened to the daemon in between. Two daemons can serve
claims side by side during a rolling update: a lock on a file makes each change of one daemon complete before the next.
"""

import asyncio
import os
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.lock import Lock, LockedError, lock
from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.files.replacement import remove_file, replace_file
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import in_words
from gpushare_plugin.core.prepared_claim import PreparedClaim
from gpushare_plugin.gpus.containers import POD_UID
from gpushare_plugin.kubelet.claim_files import LARGEST_CLAIM_FILE, RECORD_VERSION, version_of

_log = structlog.get_logger()

TRUSTED_AFTER = 1.0
"""Seconds from the last change of a file until its time tells a further change: the kernel counts time in ticks."""
LOCK_WITHIN = 5.0
"""Seconds that a change waits for the change of another daemon, which takes milliseconds."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""The file with the ID of this boot of the node (Linux, random(4))."""

_LAST_WRITER = "writer"
"""The name of the file, beside the records, that names the process which changed or read the records last."""
_POD = re.compile(POD_UID.encode())
_UID = re.compile(r"[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?")


class ClaimRecordError(GpushareError):
    """A record, or the directory of records, cannot be used; the message gives path, reason and remedy."""


class ClaimRecord(Struct, frozen=True):
    """What is remembered of a claim."""

    claim: PreparedClaim
    """The claim with its devices, as the kubelet is answered."""
    cdi: dict[str, Any] | None = None
    """The CDI specification of the claim; None where containers of the claim get nothing but their cards."""
    boot: str = ""
    """The ID of the boot of the node in which the claim was prepared."""
    version: int = RECORD_VERSION
    """The version of the meaning."""


class _ToldClaim(Struct):
    claim: PreparedClaim


class UnreadableRecord(Struct, frozen=True):
    """A record of a claim that this daemon cannot read."""

    path: Path
    """The file."""
    reason: str
    """What is wrong, and the remedy, for people."""
    newer: bool = False
    """Whether a newer version of gpushare wrote the record: then the file stays as the file is."""
    claim: PreparedClaim | None = None
    """The claim with what counts of the claim; None where the record does not tell."""
    pods: frozenset[str] = frozenset()
    """What can be the UIDs of pods of the claim: each UID in the file, also where the file is torn."""


def uid_is_usable(uid: str) -> bool:
    """Return whether `uid` can be the name of a file, as every UID of Kubernetes can."""
    return _UID.fullmatch(uid) is not None


def boot_id() -> str:
    """Return the ID of this boot of the node; raises OSError."""
    return BOOT_ID.read_text().strip()


class ClaimRecords:
    """The records of the claims that are prepared in this boot of the node, as all daemons of the node see them.

    After a reboot no container runs, and the kubelet has every claim prepared again: records of earlier boots go.
    """

    def __init__(self, directory: Path, boot: str) -> None:
        """Keep a file for each claim in `directory`; `boot` is the ID of this boot of the node."""
        self.directory = directory
        self._boot = boot
        self._writer = uuid4().hex
        self._records: dict[str, ClaimRecord] = {}
        self._by_gpu: defaultdict[str, dict[str, PreparedClaim]] = defaultdict(dict)
        self._unreadable: dict[str, UnreadableRecord] = {}
        self._states: Mapping[str, _FileState | None] = {}
        self._given_back: set[str] = set()
        self._turn = asyncio.Lock()

    @property
    def claims(self) -> Mapping[str, ClaimRecord]:
        """The records by the UID of the claim, as of the last change or look."""
        return self._records

    def beside(self, claim: PreparedClaim) -> Sequence[PreparedClaim]:
        """Return the claims on the GPUs of a claim: what a claim costs must not grow with the claims of other GPUs.

        Claims of unreadable records count as far as the records tell.
        """
        told = {each.claim.id.uid: each.claim for each in self.unreadable.values() if each.claim is not None}
        found = {uid: each for device in claim.devices for uid, each in self._by_gpu[device.gpu].items()}
        return tuple((told | found).values())

    @property
    def unreadable(self) -> Mapping[str, UnreadableRecord]:
        """The records that cannot be read of claims that nobody has given back, by the UID of the claim."""
        return {uid: each for uid, each in self._unreadable.items() if uid not in self._given_back}

    @property
    def given_back(self) -> frozenset[str]:
        """The UIDs of the claims that nobody has any more, though a record of a newer version stays."""
        return frozenset(self._given_back)

    @property
    def newer(self) -> Mapping[str, UnreadableRecord]:
        """The records that a newer version of gpushare wrote, by the UID of the claim."""
        return {uid: each for uid, each in self._unreadable.items() if each.newer}

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Look at the records, and keep all other daemons from changes until the block ends; raises ClaimRecordError.

        The block must not wait for anything: other daemons wait for the block. Blocks that follow one another run in
        different turns of the event loop: however many claims come at once, other calls are answered in between.
        """
        await self._turn.acquire()
        try:
            with await self._locked():
                try:
                    self._look()
                except OSError as error:
                    raise self._unusable(error) from error
                yield
        finally:
            asyncio.get_running_loop().call_soon(self._turn.release)

    @property
    def current(self) -> bool:
        """Whether no other daemon has changed the records since the last change or look; raises OSError."""
        try:
            return read_regular(self.directory / _LAST_WRITER, 64).decode(errors="replace") == self._writer
        except FileNotFoundError:
            return False

    def write(self, claim: PreparedClaim, cdi: dict[str, Any] | None) -> None:
        """Record a claim, in place of an earlier record of the claim; only inside `exclusive`; raises OSError."""
        uid, record = claim.id.uid, ClaimRecord(claim, cdi, self._boot)
        replace_file(self._file(uid), msgspec.json.format(msgspec.json.encode(record), indent=1).decode())
        self._keep(uid, record)
        self._unreadable.pop(uid, None)

    def remove(self, uid: str) -> None:
        """Remove the record of a claim, if there is one; only inside `exclusive`; raises OSError.

        A record of a newer version stays for the newer version, and counts no more.
        """
        if uid in self.newer:
            self._given_back.add(uid)
            return
        remove_file(self._file(uid))
        self._drop(uid)
        self._unreadable.pop(uid, None)

    def _keep(self, uid: str, record: ClaimRecord) -> None:
        if self._records.get(uid) == record:
            return
        self._drop(uid)
        self._records[uid] = record
        for device in record.claim.devices:
            self._by_gpu[device.gpu][uid] = record.claim

    def _drop(self, uid: str) -> None:
        if (known := self._records.pop(uid, None)) is not None:
            for device in known.claim.devices:
                self._by_gpu[device.gpu].pop(uid, None)

    async def _locked(self) -> Lock:
        wait = 0.001
        try:
            async with asyncio.timeout(LOCK_WITHIN):
                while True:
                    try:
                        return self._lock()
                    except LockedError:
                        await asyncio.sleep(wait := min(2 * wait, 0.1))
        except TimeoutError:
            raise ClaimRecordError(
                f"another daemon of gpushare has kept the records of claims in {self.directory} for "
                f"{LOCK_WITHIN:g} s; the kubelet tries again. If that lasts, end the other daemon"
            ) from None
        except OSError as error:
            raise self._unusable(error) from error

    def _lock(self) -> Lock:
        try:
            return lock(self.directory / "lock", signed=False)
        except FileNotFoundError:
            self.directory.mkdir(parents=True, exist_ok=True)
            return lock(self.directory / "lock", signed=False)

    def _unusable(self, error: OSError) -> ClaimRecordError:
        return ClaimRecordError(
            f"the records of claims in {self.directory} cannot be used: {in_words(error)}; check that the directory of "
            "the kubelet is mounted at the same path, writable and not full"
        )

    def _look(self) -> None:
        """Read the records that have changed, unless this process made the last change; raises OSError.

        Records that cannot be read are always read again: people may have removed or mended them.
        """
        if self.current:
            self._read(self._unreadable)
            return
        for leftover in self.directory.glob(".*.new"):  # of a daemon that ended while it wrote
            leftover.unlink(missing_ok=True)
        before, self._states = self._states, dict(_states(self.directory))
        gone = self._records.keys() - self._states.keys()
        changed = {uid for uid, state in self._states.items() if state is None or state != before.get(uid)}
        self._read(gone | changed | self._unreadable.keys())
        self._sign()

    def _sign(self) -> None:
        """Say that this process has read or changed the records; on a full disk, that nobody knows all of them."""
        file = self.directory / _LAST_WRITER
        try:
            replace_file(file, self._writer)
        except OSError:
            with suppress(OSError):  # then nobody can change the records either
                remove_file(file)

    def _read(self, uids: Iterable[str]) -> None:
        """Read records, in place of all records that could not be read; `uids` are the names of files without `.json`.

        A record that is gone, or of an earlier boot, is forgotten.
        """
        uids, before, self._unreadable = sorted(uids), self._unreadable, {}
        for uid in uids:
            file = self._file(uid)
            try:
                record = _decoded(file, uid)
            except FileNotFoundError:
                self._drop(uid)
                continue
            except ClaimRecordError as error:
                self._drop(uid)
                if uid_is_usable(uid):
                    newer = isinstance(error, _NewerError)
                    self._unreadable[uid] = UnreadableRecord(file, str(error), newer, *_told(file))
                if uid not in before:
                    _log.error("claim_record_unreadable", path=str(file), reason=str(error))
                continue
            if record.boot == self._boot:
                self._keep(uid, record)
            else:
                self._drop(uid)
                file.unlink(missing_ok=True)

    def _file(self, uid: str) -> Path:
        return self.directory / f"{uid}.json"


class _FileState(NamedTuple):
    """What differs once a file was replaced or changed."""

    inode: int
    size: int
    changed_at_ns: int


def _states(directory: Path) -> Iterator[tuple[str, _FileState | None]]:
    """Yield the UID of each record with the state of its file; None for a file that can change unseen, as it is new.

    Raises OSError.
    """
    now = time.time_ns()
    with os.scandir(directory) as files:
        for file in files:
            if file.name.endswith(".json"):
                found = file.stat(follow_symlinks=False)
                state = _FileState(found.st_ino, found.st_size, found.st_mtime_ns)
                yield file.name.removesuffix(".json"), state if now - found.st_mtime_ns > TRUSTED_AFTER * 1e9 else None


class _NewerError(ClaimRecordError):
    """A newer version of gpushare wrote the record."""


def _decoded(file: Path, uid: str) -> ClaimRecord:
    """Return the record in `file`; raises FileNotFoundError and ClaimRecordError."""
    remedy = "end the pods that use the claim, then remove the file"
    try:
        content = read_regular(file, LARGEST_CLAIM_FILE + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ClaimRecordError(f"cannot be read: {in_words(error)}; {remedy}") from error
    if len(content) > LARGEST_CLAIM_FILE:
        raise ClaimRecordError(f"has more than {LARGEST_CLAIM_FILE} bytes, which gpushare never writes; {remedy}")
    try:
        version = version_of(content)
        if version > RECORD_VERSION:
            raise _NewerError(
                f"was written by a newer version of gpushare (record version {version}, this one reads up to "
                f"{RECORD_VERSION}) and is left alone; go back to the newer version, or end the pods that use the claim"
            )
        record = msgspec.json.decode(content, type=ClaimRecord)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ClaimRecordError(f"is damaged, or not a record of gpushare ({error}); {remedy}") from error
    if record.claim.id.uid != uid or not uid_is_usable(uid):
        raise ClaimRecordError(
            f"is the record of the claim with UID {record.claim.id.uid}, under another name; {remedy}"
        )
    return record


def _told(file: Path) -> tuple[PreparedClaim | None, frozenset[str]]:
    """Return the claim of a record that cannot be used, as far as the record tells, and what can be its pods' UIDs."""
    try:
        content = read_regular(file, LARGEST_CLAIM_FILE)
    except OSError:
        return None, frozenset()
    pods = frozenset(each.group().decode() for each in _POD.finditer(content))
    try:
        return msgspec.json.decode(content, type=_ToldClaim).claim, pods
    except msgspec.MsgspecError:
        return None, pods

"""Protocol 3 of an MPS control daemon: one server, and in it a namespace with limits for each container.

A namespace has a socket of its own, and a container sees no other socket. What a program sets in its environment can
only tighten the limits of its namespace, unless the program names a GPU that it does not see: that lifts the limits of
memory.

Sources: NVIDIA, "Multi-Process Service" r615, MPS v3 Interface (commands, columns of lists) and MPS v3 Namespaces (the
sockets); the documentation of NVIDIA Dynamo, "Per-GPU Compute and Memory Limits with MPS" (measured with driver 615:
limits are for each GPU; a namespace inherits none; a server that cannot start is accepted, and missing in the list).
Nothing of this was seen on a card by gpushare. No document says which commands fail with which exit status, and how
exactly amounts are told. Therefore what a command should have changed is read afterwards, and set again at intervals.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import structlog

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.namespaces import SERVER, WITH_NAMESPACES
from gpushare_plugin.mps.applied import Applied
from gpushare_plugin.mps.control import Control, ControlError
from gpushare_plugin.mps.exchange import ListedClient, MpsNamespace, MpsSettings, served_gpus
from gpushare_plugin.mps.processes import MpsProcess, process_of

_log = structlog.get_logger()

_DEFAULT = "default"
"""The namespace that every server has; no container sees its socket."""
_CSV = "--format=csv,noheader"
_OF_SERVER = f"--server={SERVER}"
_SIGN_OF_LIFE = ("feature", "describe", _CSV)
"""A question that the daemon always answers with a line for each of its features."""
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_AMOUNT = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[KMG])(i?B)?")
_AT_ONCE = 8
"""The namespaces whose limits are set again at a time although they seem unchanged."""
_MOST_NAMES = 5
"""The most namespaces named in a message."""


class _ToldLimits(Struct, frozen=True):
    """The limits of a namespace, in the words of the control daemon."""

    memory: str
    threads: str

    def __str__(self) -> str:
        return f"{self.memory} of memory and {self.threads} % of the threads"

    @property
    def mib(self) -> int | None:
        """The limit of memory in MiB, None without a limit that can be read."""
        amount = _AMOUNT.fullmatch(self.memory)
        return max(1, int(float(amount["number"]) * _MIB[amount["unit"]])) if amount else None

    def agrees_with(self, namespace: MpsNamespace) -> bool:
        """Return whether the limits are those of `namespace`, within the precision of the words."""
        amount = _AMOUNT.fullmatch(self.memory)
        if amount is None or not self._has_threads(namespace.active_thread_percentage):
            return False
        number, unit = str(amount["number"]), _MIB[amount["unit"]]
        return abs(float(number) * unit - namespace.memory_limit_mib) < unit * 10.0 ** -len(number.partition(".")[2])

    def _has_threads(self, percentage: int) -> bool:
        try:
            return float(self.threads.removesuffix("%")) == percentage
        except ValueError:
            return False


class AppliedNamespaces(Applied):
    """The server and the namespaces of one running daemon with protocol 3; limits have the names of namespaces.

    Nothing is in force until there is a server.
    """

    def __init__(self, control: Control, process: MpsProcess, every: float) -> None:
        """Set the limits of `process`, the daemon behind `control`, again every `every` seconds."""
        super().__init__(control, process, every)
        self._carried_out: MpsSettings | None = None
        self._server: MpsProcess | None = None
        self._turn = 0
        self._told: Mapping[str, _ToldLimits] = {}

    async def apply(self, desired: MpsSettings) -> bool:
        """Make the server and the namespaces of `desired`, and delete the others; raises ControlError.

        A namespace with clients stays until they have ended. Limits are looked at again at intervals, and some of them
        set again each time, because a change may be too small to be seen in the answers. An ended server is replaced. A
        namespace that cannot be made keeps no other one from being made. Settings for another protocol change nothing.
        Returns whether the limits were looked at.
        """
        if desired.protocol != WITH_NAMESPACES:
            return False
        again = self._now() >= self._look_at
        if desired == self._carried_out and not again and (self._server is None or self._server.alive):
            return False
        self._carried_out = None
        await self._ensure_server()
        found = await self._limits()
        refused = await self._set(desired.namespaces, found, again=again)
        await self._delete(found.keys() - {_DEFAULT, *(each.name for each in desired.namespaces)})
        self._in_force = MpsSettings(
            gpus=served_gpus(self._process.devices, *desired.gpus),
            protocol=WITH_NAMESPACES,
            namespaces=tuple(each for each in desired.namespaces if each.name not in refused),
            revision=desired.revision,
        )
        if refused:
            reasons = some_of([f"{name}: {reason}" for name, reason in refused.items()], _MOST_NAMES)
            raise ControlError(f"{len(refused)} MPS namespaces do not have their limits: {reasons}")
        self._carried_out = desired
        if again:
            self._look_at = self._now() + self._every
        return True

    async def probe(self) -> None:
        """Make sure that the daemon answers; raises ControlError."""
        if not await self._control.command(*_SIGN_OF_LIFE):
            raise ControlError(f"the MPS control daemon gives no answer to the command {' '.join(_SIGN_OF_LIFE)!r}")

    async def clients(self) -> tuple[ListedClient, ...]:
        """Return the processes that use any server, each with the limit of its namespace; raises ControlError.

        The control daemon tells no limit that a process has set, or lifted, by its own environment.
        """
        rows = await self._rows("client", "list", "--all", columns=4)  # a process on several GPUs has several lines
        found = {(int(pid), server, name) for pid, server, _, name, *_ in rows if pid.isdecimal()}
        if not found:
            await self.probe()  # no answer is not an empty answer
        return tuple([self._client(*each) for each in sorted(found)])

    def _client(self, pid: int, server: str, namespace: str) -> ListedClient:
        limit = self._memory_limit(server, namespace)
        doubt = None if limit else f"it uses the namespace {namespace} of the MPS server {server}, which has no limit"
        return ListedClient(pid=pid, server=server, namespace=namespace, memory_limit_mib=limit, doubt=doubt)

    def _memory_limit(self, server: str, name: str) -> int | None:
        """Return the limit of a namespace: what is in force where the control daemon tells the same, only rougher."""
        if server != SERVER or (told := self._told.get(name)) is None:
            return None
        agreed = (each for each in self.in_force.namespaces if each.name == name and told.agrees_with(each))
        return next((each.memory_limit_mib for each in agreed), told.mib)

    async def _ensure_server(self) -> None:
        """Make the server unless it is listed; raises ControlError for a server that has ended, with its namespaces.

        The next attempt then makes another one: until then, the namespaces are not in force.
        """
        if await self._is_listed():
            return
        self._in_force = None
        if (ended := self._server) is not None:
            self._server = None
            _log.warning("mps_server_ended", pid=ended.pid)
            raise ControlError(
                f"the MPS server (process {ended.pid}) has ended, and its clients with it; making another"
            )
        await self._control.command("server", "create", SERVER)
        if not await self._is_listed():
            raise ControlError(
                f"the MPS server {SERVER} has ended at once, as it does where it cannot use a GPU: see its server.log"
            )
        _log.info("mps_server_created", pid=self._server.pid if self._server else None)

    async def _is_listed(self) -> bool:
        for name, _, pid, *_ in await self._rows("server", "list"):
            if name == SERVER:
                self._server = process_of(pid)
                return True
        return False

    async def _limits(self) -> Mapping[str, _ToldLimits]:
        """Return the limits of each namespace; raises ControlError for no answer."""
        rows = await self._rows("namespace", "list", _OF_SERVER, columns=5)
        found = {name: _ToldLimits(memory, threads) for name, _, _, memory, threads, *_ in rows}
        if _DEFAULT not in found:
            raise ControlError(f"the MPS control daemon lists no namespace of the server {SERVER}")
        self._told = found
        return found

    async def _set(
        self, wanted: Sequence[MpsNamespace], found: Mapping[str, _ToldLimits], *, again: bool
    ) -> Mapping[str, str]:
        """Set the limits of `wanted` that differ or are not known to be set; return why namespaces lack theirs.

        `again`: also set a few others, whose limits may differ by less than the control daemon tells.
        """
        changed = {each.name: str(found[each.name]) for each in self._changed(found)}
        if changed and changed != self.changed:
            _log.warning("mps_limits_restored", pid=self._process.pid, found=changed)
        self.changed = changed
        refused: dict[str, str] = {}
        turn = self._next(wanted) if again else ()
        known = frozenset(self.in_force.namespaces)
        due = [each for each in wanted if each not in known or not _has(found, each) or each in turn]
        for each in due:
            try:
                await self._set_one(each, exists=each.name in found)
            except ControlError as error:
                refused[each.name] = str(error)
        if not due:
            return refused
        now = await self._limits()
        return {each.name: f"it has {now.get(each.name)}" for each in due if not _has(now, each)} | refused

    def _next(self, wanted: Sequence[MpsNamespace]) -> Collection[MpsNamespace]:
        """Return the next few of `wanted`, so that each has its turn: every command starts a program."""
        self._turn = self._turn % len(wanted) + _AT_ONCE if wanted else 0
        return wanted[max(0, self._turn - _AT_ONCE) : self._turn]

    def _changed(self, found: Mapping[str, _ToldLimits]) -> Iterator[MpsNamespace]:
        """Yield the namespaces in force whose limits another process has changed."""
        yield from (each for each in self.in_force.namespaces if each.name in found and not _has(found, each))

    async def _set_one(self, namespace: MpsNamespace, *, exists: bool) -> None:
        if not exists:
            await self._control.command("namespace", "create", namespace.name, _OF_SERVER)
        memory = f"--pinned-memory-limit={namespace.memory_limit_mib}M"
        threads = f"--active-thread-percentage={namespace.active_thread_percentage}"
        await self._control.command("namespace", "set", namespace.name, _OF_SERVER, memory, threads)

    async def _delete(self, names: Collection[str]) -> None:
        """Delete namespaces without clients; the daemon itself refuses a namespace that has got a client meanwhile."""
        if not names:
            return
        used = {client.namespace for client in await self.clients() if client.server == SERVER}
        for name in sorted({*names} - used):
            with contextlib.suppress(ControlError):  # the next look finds it again
                await self._control.command("namespace", "delete", name, _OF_SERVER)

    async def _rows(self, *command: str, columns: int = 3) -> list[list[str]]:
        """Return the fields of each line of a list, leaving out lines with fewer than `columns`."""
        lines = (await self._control.command(*command, _CSV)).splitlines()
        rows = ([field.strip() for field in line.split(",")] for line in lines)
        return [row for row in rows if len(row) >= columns]


def _has(found: Mapping[str, _ToldLimits], namespace: MpsNamespace) -> bool:
    return namespace.name in found and found[namespace.name].agrees_with(namespace)

"""Which processes are clients of the node's MPS control daemon, by the daemon's own answers."""

from collections.abc import Iterable

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.in_effect import ClientNamespace, ProcessFacts
from gpushare_plugin.core.usage import Process
from gpushare_plugin.mps.exchange import ListedClient, MpsStatus

_NO_ANSWER = (
    "may be no client of MPS: gpushare mps does not say which clients MPS has; it does not run, is of an earlier "
    "version, or gets no answer"
)
_NOT_ASKED = "may be no client of MPS: gpushare mps has not asked for the clients since the process was first seen"
_NAMELESS = (
    "may be no client of MPS: gpushare mps does not see all processes of the node, which takes hostPID in its pod"
)
_OTHER = "is a client of MPS by the driver's word, and not by the word of the MPS control daemon of gpushare"


class ClientWatch:
    """Tells clients from other processes; remembers when each process was first seen on a GPU."""

    def __init__(self) -> None:
        """Begin without processes."""
        self._first_seen: dict[tuple[int, str], float] = {}

    def follow(self, processes: Iterable[Process], now: float) -> None:
        """Take in the processes seen on GPUs at the time `now`, in seconds of the boot-time clock."""
        before = self._first_seen
        keys = ((each.pid, each.owner.pod_uid) for each in processes)
        self._first_seen = {key: before.get(key, now) for key in keys}

    def add(self, facts: ProcessFacts, process: Process, status: MpsStatus) -> ProcessFacts:
        """Return the facts about a process with whether it is a client, by the status of `gpushare mps`.

        Only a list of clients that is younger than the process on its GPU shows that the process is no client.
        """
        if status.clients is None or status.clients_asked_at is None:
            return replace(facts, unlisted=_NO_ANSWER)
        if (client := _client(status.clients, process.pid)) is not None:
            return replace(facts, client=True, doubt=client.doubt, namespace=_namespace(client))
        if status.clients_asked_at <= self._first_seen.get((process.pid, process.owner.pod_uid), float("inf")):
            return replace(facts, unlisted=_NOT_ASKED)
        if process.mps_client:
            return replace(facts, unlisted=_OTHER)
        if any(not each.pid for each in status.clients):
            return replace(facts, unlisted=_NAMELESS)
        return replace(facts, client=False)


def _namespace(client: ListedClient) -> ClientNamespace | None:
    if client.namespace is None:
        return None
    mib = client.memory_limit_mib
    return ClientNamespace(client.namespace, None if mib is None else mib * MIB)


def _client(clients: Iterable[ListedClient], pid: int) -> ListedClient | None:
    return next((each for each in clients if each.pid == pid), None)

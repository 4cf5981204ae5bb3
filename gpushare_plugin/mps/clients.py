"""The clients of an MPS control daemon, by the daemon's own answers, and which clients may lack a default limit."""

from collections.abc import Awaitable, Callable, Mapping

from gpushare_plugin.gpus import containers
from gpushare_plugin.mps.exchange import MOST_CLIENTS, ListedClient

_CHANGED = "limits of MPS were changed from outside when it started: "
_LONGEST_DOUBT = 100


class ListedClients:
    """The clients of one running daemon."""

    def __init__(self, listed: Callable[[], Awaitable[tuple[ListedClient, ...]]]) -> None:
        """Ask the daemon by `listed`, which raises ControlError."""
        self._listed = listed
        self.found: tuple[ListedClient, ...] | None = None
        """The clients by the last answer; None without an answer, or with more clients than MOST_CLIENTS."""
        self._latest: frozenset[tuple[int, str]] = frozenset()
        self.asked_at: float | None = None
        """The time of the last question, in seconds of the boot-time clock; None without an answer."""

    async def ask(self, changed: Mapping[str, str]) -> None:
        """Ask the daemon for its clients; raises ControlError, and the clients are unknown then.

        `changed` has the limits that were found changed before this question and not before the last one, by the
        command that sets the limit: clients that are new may have started under such a limit, and keep the limit until
        they end. The limit may have been changed shortly before the last question, too: clients that were new then
        count as new.
        """
        before, self.found, asked_at = self.found, None, containers.now()
        clients = await self._listed()
        if len(clients) <= MOST_CLIENTS:
            listed = {(each.pid, each.server): each for each in before or () if each.pid}
            self._latest, latest = frozenset((each.pid, each.server) for each in clients) - listed.keys(), self._latest
            known = {key: each for key, each in listed.items() if not (changed and key in latest)}
            doubt = f"{_CHANGED}{', '.join(changed)}"[:_LONGEST_DOUBT] if changed else None
            self.found = tuple(
                known.get((each.pid, each.server)) or each.model_copy(update={"doubt": each.doubt or doubt})
                for each in clients
            )
            self.asked_at = asked_at

"""Tests of `gpushare_plugin.mps.clients`: which clients may have started under a changed limit."""

from gpushare_plugin.mps.clients import ListedClients
from gpushare_plugin.mps.exchange import ListedClient

CHANGED = {"set_device_pinned_mem_limit 17 0 4096M": ""}


class Listing:
    """What a control daemon lists."""

    def __init__(self) -> None:
        """Have no clients."""
        self.pids: tuple[int, ...] = ()
        self.clients = ListedClients(self._listed)

    async def _listed(self) -> tuple[ListedClient, ...]:
        return tuple(ListedClient(pid=pid, server="17") for pid in self.pids)

    async def doubtful(self, *pids: int, changed: bool = False) -> set[int]:
        """Ask while there are these clients, after limits were found changed or not; return the doubtful clients."""
        self.pids = pids
        await self.clients.ask(CHANGED if changed else {})
        return {each.pid for each in self.clients.found or () if each.doubt}


async def test_clients_since_the_check_before_a_change_was_found_are_doubtful() -> None:
    """A limit can be changed between a check and the question for clients after it: clients new then may have it."""
    listing = Listing()
    assert await listing.doubtful(1) == set()
    assert await listing.doubtful(1, 2) == set()
    assert await listing.doubtful(1, 2, 3, changed=True) == {2, 3}
    assert await listing.doubtful(1, 2, 3, 4) == {2, 3}
    assert await listing.doubtful(1, 3, 4, 5) == {3}
    assert await listing.doubtful(1, 3, 5, changed=True) == {3, 5}

"""Keeps what pages show like the cluster."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime

from gpushare_plugin.base.tasks import beside
from gpushare_plugin.claims.overview import DeviceClasses
from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.whole_cluster.daemons import DaemonPod
from gpushare_plugin.kube.whole_cluster.overview import follow
from gpushare_plugin.partitioner.outlook import JudgedOverview
from gpushare_plugin.web.faults import SeenFaults
from gpushare_plugin.web.interest import Interests
from gpushare_plugin.web.picture import Picture
from gpushare_plugin.web.standing import EVERY, ProgramNamespaces, read_standing
from gpushare_plugin.web.teams import Teams
from gpushare_plugin.web.use import UseReading

QUIET = 30.0
"""Seconds without data after which the pages ask again, so that they say within a minute that nobody answers."""
_EVERY = 1.0
"""Seconds between two looks at the cluster at least."""
_MOST_REVISIONS = 1 << 48
"""The first revision is one of so many."""


class FollowedPicture:
    """A picture of a cluster that is kept like the cluster."""

    def __init__(self, namespaces: ProgramNamespaces | None = None) -> None:
        """Show nothing yet; `namespaces` has those of the programs that decide about pods."""
        self._namespaces = namespaces or ProgramNamespaces()
        self._stood, self._asked = asyncio.Event(), asyncio.Event()
        self.judged = JudgedOverview()
        """The cluster, with the rules for where pods can run."""
        # A page can come from another process, or from before a restart: what that page has seen is no revision here.
        self.picture = Picture(secrets.randbelow(_MOST_REVISIONS), lambda: self.judged.silence)
        """The picture."""
        self.teams = Teams()
        """What namespaces have, now and over time."""
        self.faults = SeenFaults()
        """What was wrong with each GPU."""
        self.interests = Interests()
        """Of which nodes open pages show the use."""
        self.daemons: Mapping[str, DaemonPod] = {}
        """The daemons of nodes in all namespaces, by the UID of the pod."""
        self.shown = asyncio.Event()
        """Set once the picture has all nodes and pods."""

    async def follow(self, client: Client) -> None:
        """Keep the picture like the cluster; raises ClusterError where the cluster cannot be read."""
        following = follow(client, (), _EVERY, empty=self._begin_anew)
        async with beside(self._keep_standing(client)), aclosing(following) as overviews:
            async for overview in overviews:
                await self._stood.wait()
                self.daemons = overview.daemons
                self.picture.refresh(overview.account, overview.claims, overview.without_node)
                self.teams.take(self.picture.nodes, time.monotonic())
                self.faults.take(self.picture.nodes, datetime.now(UTC))
                self.shown.set()
                if self.judged.needs_claims and self.picture.standing.classes == DeviceClasses():
                    self._asked.set()

    def _begin_anew(self) -> JudgedOverview:
        """Return an overview without what may be gone since the last time."""
        self.judged = JudgedOverview()
        return self.judged

    async def _keep_standing(self, client: Client) -> None:
        while True:
            claims = self.judged.needs_claims
            self.picture.stand(await read_standing(client, self._namespaces, claims=claims))
            self._stood.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await self._asked.wait()
            self._asked.clear()

    def take_readings(self, readings: Mapping[str, UseReading]) -> None:
        """Take in the use of nodes that was read, by the name of the node."""
        self.picture.take_readings(readings)
        self.teams.take(self.picture.nodes, time.monotonic())

    def problems(self) -> list[str]:
        """Return why nothing can be shown; empty without a problem."""
        return [] if self.shown.is_set() else ["all nodes and pods have not been listed yet"]

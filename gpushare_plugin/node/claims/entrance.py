"""The way into this room: everything else here is imported only where claims have GPUs of the node, or can get some."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.base.tasks import background
from gpushare_plugin.config.schema.sections import Dra
from gpushare_plugin.core.namespaces import ContainerNamespace
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import Usage
from gpushare_plugin.kubelet.claim_files import CLAIM_RECORDS, GIVEN_BY_CLAIM
from gpushare_plugin.node.news.news import News
from gpushare_plugin.sharing.plan import Plan

if TYPE_CHECKING:
    from gpushare_plugin.core.claim_state import ClaimState
    from gpushare_plugin.kube.own_node.member import Member
    from gpushare_plugin.node.claims.gpus import UntilMade
    from gpushare_plugin.node.claims.hand_over import HandOver
    from gpushare_plugin.node.claims.service import NodeClaims

_log = structlog.get_logger()

AGAIN_AFTER = 10.0
"""Seconds between attempts to read the records of claims."""
_GIVEN = f"*/{GIVEN_BY_CLAIM}"


class ClaimPlaces(Struct, frozen=True):
    """Where the claims of a node have their files and sockets."""

    kubelet_root: Path
    """The root directory of the kubelet."""
    pod_resources: Path
    """The pod-resources socket of the kubelet."""
    specifications: Path
    """The directory of CDI specifications that a reboot empties."""
    cgroups: Path
    """Where the host's tree of cgroups is mounted; where it is not, nobody knows which pods still run."""
    copies: Path
    """The directory with copies of the files that say which GPUs belong to claims."""

    @property
    def registry(self) -> Path:
        """The directory in which the kubelet looks for DRA drivers."""
        return self.kubelet_root / "plugins_registry"

    def directory(self, driver: str) -> Path:
        """Return the directory of a DRA driver."""
        return self.kubelet_root / "plugins" / driver

    def given(self, driver: str) -> tuple[Path, Path]:
        """Return the directories with the file that says which GPUs belong to claims of a DRA driver."""
        return self.directory(driver), self.copies / driver


class PluginSide(Protocol):
    """The side of the device plugin: the GPUs of the node, and which of them the config gives by claim."""

    snapshot: Published[Snapshot]
    """The newest snapshot of the node."""

    @property
    def dra(self) -> Dra | None:
        """The section of the config in effect; None where the config gives no GPU by claim."""
        ...

    def share_with(self, claims: "HandOver") -> None:
        """Keep GPUs that belong to claims from the device plugin, and the other way round."""
        ...

    def apply(self) -> None:
        """Compute the offer again, because GPUs have left the claims."""
        ...

    def keep_namespaces(self, namespaces: Iterable[ContainerNamespace]) -> None:
        """Keep the MPS namespaces that claims need, in place of those of the last call."""
        ...

    async def until_made(self, namespaces: Iterable[ContainerNamespace]) -> str:
        """Wait a while until MPS namespaces exist; return why one does not exist, empty when all exist."""
        ...


class Entrance:
    """Gives GPUs of a node by claim, once there is something to give."""

    def __init__(self, places: ClaimPlaces, cluster: "Member | None", news: News) -> None:
        """Look for claims in these `places`; without a `cluster` no GPU is given by claim."""
        self._places = places
        self._news = news
        self._cluster = cluster
        self._claims: NodeClaims | None = None
        self._found = asyncio.Event()
        self._driver = ""
        self._told = ""
        self._kept_back = ""

    @property
    def state(self) -> "ClaimState | None":
        """The claims of the node now; None where no GPU is, or was, given by claim."""
        if self._claims is not None:
            return self._claims.state
        if not self._told:
            return None
        from gpushare_plugin.core.claim_state import ClaimState  # noqa: PLC0415 - only where there are claims

        return ClaimState(self._driver, trouble=f"none can be served: {self._told}")

    def learn(self, usage: Usage) -> None:
        """Take in what a look at the usage found out about the limits and the pods of claims."""
        if self._claims is not None:
            self._claims.learn(usage)

    async def stand_by(self, dra: Dra | None, plan: Plan, parts: Mapping[str, str], until_made: "UntilMade") -> None:
        """Prepare claims from now on beside the daemon that serves the node, by the same config with the `plan`."""
        if dra is not None and (claims := self._made(dra)) is not None:
            own = plan if claims.driver == dra.driver else replace(plan, by_claim={})
            await self._begin(claims, claims.stand_by(own, parts, until_made))

    async def begin(self, node: PluginSide) -> None:
        """Keep GPUs that belong to claims from the device plugin, as far as the records of claims can be read."""
        if (claims := self._claims or self._made(node.dra)) is not None:
            await self._begin(claims, claims.begin(node))
        if self._claims is None:
            self._keep_back(node)

    def _keep_back(self, node: PluginSide) -> None:
        """Keep GPUs of earlier claims from the device plugin while claims cannot be served."""
        before = self._drivers_before()
        if not before or self._kept_back == self._told:
            return
        from gpushare_plugin.node.claims.given import GivenFile  # noqa: PLC0415 - only where there were claims
        from gpushare_plugin.node.claims.hand_over import HandOver  # noqa: PLC0415 - as above

        self._kept_back = self._told
        file, *others = (GivenFile(*self._places.given(each)) for each in before)
        node.share_with(HandOver(file, unserved=self._told, others=others))

    async def answer(self) -> None:
        """Answer the kubelet once claims can be prepared; runs until cancelled."""
        await self._for_each_driver(lambda claims: claims.plugin.run())

    async def follow(self) -> None:
        """Follow what the daemon that stands by does with claims; runs until cancelled."""
        await self._for_each_driver(lambda claims: claims.preparation.follow())

    async def _for_each_driver(self, work: "Callable[[NodeClaims], Awaitable[None]]") -> None:
        """Do `work` while a DRA driver is served, for one after the other; runs until cancelled."""
        while True:
            await self._found.wait()
            if (claims := self._claims) is not None:
                async with background() as spawn:
                    spawn("DRA driver", partial(work, claims))
                    await claims.ended.wait()

    async def serve(self, node: PluginSide) -> None:
        """Publish and follow claims as soon as the config gives GPUs by claim; runs until cancelled.

        Where the name of the DRA driver changes, the claims of the earlier name end first.
        """
        while True:
            claims = await self._begun(node)
            await claims.run(node, partial(self._is_left, claims.driver))
            self._claims = None
            self._found.clear()

    async def _begun(self, node: PluginSide) -> "NodeClaims":
        while self._claims is None:
            changed = node.snapshot.replaced
            await self.begin(node)
            if self._claims is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_AFTER if self._told else None):
                        await changed.wait()
        return self._claims

    def _made(self, dra: Dra | None) -> "NodeClaims | None":
        """Return what serves claims; None where there are none, or none can be served."""
        before = self._drivers_before()
        configured = dra.driver if dra is not None else None
        driver = next((each for each in before if each != configured), configured)
        if driver is None:
            self._told = ""
            return None
        self._driver = driver
        if self._cluster is None:
            self._tell("the API server is not used, and claims are read there; set --node-name (NODE_NAME)")
            return None
        if reason := self._why_not_mounted(driver, dra):
            self._tell(reason)
            return None
        from gpushare_plugin.node.claims.service import NodeClaims  # noqa: PLC0415 - only where there are claims

        try:
            others = [each for each in before if each != driver]
            return NodeClaims(driver, self._places, self._cluster, self._news, others)
        except (GpushareError, OSError) as error:
            self._tell(str(error))
            return None

    async def _begin(self, claims: "NodeClaims", beginning: Awaitable[None]) -> None:
        try:
            await beginning
        except GpushareError as error:
            self._tell(str(error))
        else:
            self._claims, self._told = claims, ""
            self._found.set()

    def _is_left(self, driver: str) -> bool:
        return driver not in self._drivers_before()

    def _drivers_before(self) -> list[str]:
        """Return the names of the DRA drivers for which GPUs may still belong to claims, by their files."""
        plugins = self._places.directory("*").parent
        directories = {file.parent for place in (plugins, self._places.copies) for file in place.glob(_GIVEN)}
        records = {file.parent.parent for file in plugins.glob(f"*/{CLAIM_RECORDS}/*.json")}
        ours = {each for each in records if (each / CLAIM_RECORDS / "writer").exists()}
        return sorted({each.name for each in directories | ours})

    def _why_not_mounted(self, driver: str, dra: Dra | None) -> str:
        """Return which directory of a DRA driver this daemon does not have; empty where nothing is missing.

        The directory of the configured DRA driver is made where it is missing. That of an earlier one has records of
        claims: a daemon that does not see them cannot end these claims, and knows of none of them.
        """
        configured = dra is not None and dra.driver == driver
        needed = (self._places.registry, *(() if configured else (self._places.directory(driver),)))
        missing = next((each for each in needed if not each.is_dir()), None)
        if missing is None:
            return ""
        reason = (
            f"{missing} is not there, which the DRA driver {driver} needs: set dra.enabled to true and dra.driver to "
            f"{driver} in the values of the chart; without the chart, see --kubelet-root"
        )
        if (copy := self._places.copies / driver / GIVEN_BY_CLAIM).exists():
            reason += (
                "; to turn claims off, set it back when no GPU belongs to claims any more (docs/claims.md); or, if no "
                f"pod of this node has a claim, remove {copy} and restart this daemon"
            )
        return reason

    def _tell(self, reason: str) -> None:
        if reason != self._told:
            _log.error("claims_unavailable", reason=reason)
        self._told = reason

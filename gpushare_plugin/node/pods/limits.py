"""The driver limits of the containers of this node: orders them from `gpushare driver-limits`, where that is to run.

Where neither the agent nor a hook can set limits any more, such as after a change of the driver, units of the GPUs
cannot be allocated: no pod is promised a limit that nothing sets.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.published import Published, changes
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.claim_state import ClaimState
from gpushare_plugin.core.driver_limits import DriverLimits, LimitRule, given_limit
from gpushare_plugin.core.holding import Holdings, Unknown
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.kubelet.allocations.reader import HoldingsReader
from gpushare_plugin.node.news.news import GpuLimited, GpuNotLimited, News
from gpushare_plugin.node.pods.claimed import held_by_claim

if TYPE_CHECKING:
    from gpushare_plugin.driver_limits.exchange import WantedContainer
    from gpushare_plugin.driver_limits.link import DriverLimitsLink
    from gpushare_plugin.kubelet.allocations.checkpoint import Granted
    from gpushare_plugin.ledger.pod import Pod
    from gpushare_plugin.node.pods.steering import Watched

LOOK_EVERY = 1.0
"""Seconds between looks at the holdings of pods while nothing changes: the kubelet tells nobody of an allocation."""
PAUSE = 0.1
"""The fewest seconds between two looks."""

_UNFOLLOWED = (
    "gpushare run does not know the containers of this node, because it does not follow the pods: set --follow-pods "
    "(in the chart: cluster.followPods)"
)
_OR_ELSE = "or let another isolation follow in the config, as in [driver, none]"


class NodeLimits:
    """Orders the driver limits of all containers, and knows the GPUs on which none can be set.

    Without an agent, and while no config names the driver as an isolation, nothing is written, read or imported.
    """

    def __init__(self, root: Path | None, changed: Callable[[], None], news: News, *, follows_pods: bool) -> None:
        """Exchange files with the agent in `root`, None without an agent; call `changed` when the agent reports.

        `follows_pods` is whether `run` gets the pods of a watch.
        """
        self._root = root
        self._changed = changed
        self._news = news
        self._follows_pods = follows_pods
        self._wanted = asyncio.Event()
        self._link: DriverLimitsLink | None = None
        self._containers: tuple[WantedContainer, ...] = ()
        self._uuids: tuple[str, ...] = ()
        self._bursts: frozenset[str] = frozenset()
        self._missing: str | None = None
        self._need_agent: frozenset[str] = frozenset()
        self._offered: frozenset[str] = frozenset()
        self._lost: Mapping[str, str] = {}
        self._published: frozenset[tuple[str, str]] = frozenset()

    def late(self, container_id: str, uuid: str) -> float:
        """Return the seconds that a container ran before the agent set its limits on a GPU; 0 where the agent did not.

        `uuid` is the UUID of the GPU.
        """
        return self._link.view.late.get((container_id, uuid), 0.0) if self._link is not None else 0.0

    @property
    def unlimited(self) -> Mapping[str, str]:
        """The reasons why GPUs cannot be allocated, by UUID.

        The host has lost its means to limit memory, or the GPU needs the agent, which cannot set limits there.
        """
        reasons = {**self._unable, **self._lost}
        return {uuid: f"no driver limits can be set: {reasons[uuid]}" for uuid in self._offered & reasons.keys()}

    @property
    def _unable(self) -> Mapping[str, str]:
        if self._link is None:
            return {}
        reasons = self._link.view.unable if self._follows_pods else dict.fromkeys(self._uuids, _UNFOLLOWED)
        return {uuid: reason for uuid, reason in reasons.items() if uuid in self._need_agent}

    def want(self, rules: Mapping[str, LimitRule], means: DriverLimits | None, offered: Collection[str]) -> None:
        """Want limits on the GPUs with these rules, by UUID; `means` are those of the host.

        `offered` are the UUIDs of the GPUs on which pods are promised limits: other GPUs with a rule only wait for pods
        that have limits.
        """
        self._offered = frozenset(offered)
        reasons = {} if means is None else {uuid: means.why_not(rule) for uuid, rule in rules.items()}
        remedy = means.remedy if means is not None else ""
        self._lost = {uuid: f"{reason}; {remedy}, {_OR_ELSE}" for uuid, reason in reasons.items() if reason}
        # The agent is told also why a node for which the config names the driver has no limits.
        if self._root is not None and (rules or self._link or means is not None):
            self._order_by(self._root, rules, means)
        self._publish()

    def _order_by(self, root: Path, rules: Mapping[str, LimitRule], means: DriverLimits | None) -> None:
        self._uuids = tuple(sorted(rules))
        # Only the agent takes a soft limit back, which the end of a container leaves behind.
        bursts = {uuid for uuid, rule in rules.items() if rule.bursts}
        self._bursts |= bursts
        self._need_agent = frozenset(rules if means is not None and means.hook else bursts)
        self._missing = (means.missing or None) if means is not None and not rules else None
        self._order(root)
        if rules:
            self._wanted.set()

    def _order(self, root: Path) -> bool:
        """Order the limits; return whether the GPUs on which limits cannot be set have changed."""
        from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, LimitOrder  # noqa: PLC0415 - see the class
        from gpushare_plugin.driver_limits.link import DriverLimitsLink  # noqa: PLC0415 - as above

        if self._link is None:
            self._link = DriverLimitsLink(DriverLimitsRoot(root), self._changed)
            before = self._link.ordered_before()
            # Until the holdings of pods are known, the containers of an earlier daemon keep their limits.
            self._containers = before.containers
            self._bursts |= frozenset(before.bursts)
        order = LimitOrder(
            gpus=self._uuids,
            bursts=tuple(sorted(self._bursts)),
            containers=self._containers,
            missing=self._missing,
        )
        return self._link.order(order)

    def _publish(self) -> None:
        """Publish the GPUs on which limits cannot be set, and those on which limits can be set again."""
        before, self._published = self._published, frozenset(self.unlimited.items())
        for uuid, reason in sorted(self._published - before):
            self._news.publish(GpuNotLimited(uuid, reason))
        for uuid in sorted({uuid for uuid, _ in before} - self.unlimited.keys()):
            self._news.publish(GpuLimited(uuid))

    # ------------------------------------------------------------------ background tasks

    async def run(
        self,
        watched: "Watched | None",
        reader: HoldingsReader,
        node: Published[Snapshot],
        claims: Callable[[], ClaimState | None] = lambda: None,
    ) -> None:
        """Follow the agent, and order the limits of containers as soon as the watched pods show their IDs.

        Runs until cancelled. `watched` is None where pods are not followed, and `claims` returns the claims of the
        node.
        """
        await self._wanted.wait()
        async with asyncio.TaskGroup() as tasks:
            if self._link is not None:
                tasks.create_task(self._link.watch(), name="agent of driver limits")
            if watched is not None:
                tasks.create_task(self._follow(watched, reader, node, claims), name="limits of containers")

    async def _follow(
        self,
        watched: "Watched",
        reader: HoldingsReader,
        node: Published[Snapshot],
        claims: Callable[[], ClaimState | None],
    ) -> None:
        before: tuple[object, object, object] = (None, None, None)
        async for _ in changes(watched.changed, node, every=LOOK_EVERY):
            pods, snapshot, prepared = watched.in_order, node.value, claims()
            units = await reader.with_uids({(pod.namespace, pod.name): pod.uid_on_node for pod in pods})
            holdings = units if isinstance(units, Unknown) else (*units, *held_by_claim(pods, prepared))
            same = holdings == before[0] and pods is before[1] and snapshot is before[2]
            if self._root is not None and not isinstance(holdings, Unknown) and not same:
                before = holdings, pods, snapshot
                granted, seen = await reader.granted(), replace(snapshot, claims=prepared)
                self._containers = tuple(_containers(seen, holdings, pods, granted, self._containers))
                if self._order(self._root):
                    self._changed()
            await asyncio.sleep(PAUSE)


def _containers(
    snapshot: Snapshot,
    holdings: Holdings,
    pods: "Iterable[Pod]",
    granted: "Granted",
    before: "Iterable[WantedContainer]",
) -> "Iterable[WantedContainer]":
    """Return the containers with known IDs that hold cards, each with its limits; MIG instances have no limits.

    A container keeps the limits that it had `before`. One without limits by the present rules has those that it was
    `granted` by its variables: another rule, also a config without limits, counts for containers that start later.
    """
    from gpushare_plugin.core.attribution import driver_limits  # noqa: PLC0415 - see the class
    from gpushare_plugin.driver_limits.exchange import WantedContainer, WantedLimit  # noqa: PLC0415 - see the class
    from gpushare_plugin.gpus.containers import CONTAINER_ID, POD_UID  # noqa: PLC0415 - see the class

    kept = {(each.container_id, gpu.uuid): gpu for each in before for gpu in each.gpus if gpu.hard_mib is not None}
    cards = {gpu.uuid for gpu in snapshot.inventory.cards}
    ids = {(pod.uid_on_node, container): id_ for pod in pods for container, id_ in pod.container_ids}
    wanted: dict[str, dict[str, WantedLimit]] = {}
    uids: dict[str, str] = {}
    promised = list(driver_limits(snapshot, holdings))
    limited = {(holder.uid, holder.container) for holder, _, by_rule in promised if by_rule.hard}
    for holder, gpu, by_rule in promised:
        who = holder.uid, holder.container
        id_ = ids.get(who, "")
        if gpu in cards and re.fullmatch(POD_UID, holder.uid) and re.fullmatch(CONTAINER_ID, id_):
            # The variables are for all GPUs of a container. Those of a limited share say nothing of a whole GPU beside.
            given = None if who in limited else given_limit(granted.get(holder.uid, {}).get(holder.container, {}))
            limit = given or by_rule
            hard = None if limit.hard is None else limit.hard // MIB
            new = WantedLimit(uuid=gpu, hard_mib=hard, soft_mib=limit.soft // MIB)
            wanted.setdefault(id_, {})[gpu] = kept.get((id_, gpu), new)
            uids[id_] = holder.uid
    for id_, gpus in sorted(wanted.items()):
        yield WantedContainer(pod_uid=uids[id_], container_id=id_, gpus=tuple(gpus[uuid] for uuid in sorted(gpus)))

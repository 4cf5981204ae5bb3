"""How a node cuts its GPUs, step by step: what is wanted, what is listed, withdrawn and retired, and what waits."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, cast

import msgspec

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.holding import Confirmed, Holding, Unknown
from gpushare_plugin.kube.own_node.requests.wanted_slices import requested_slices
from gpushare_plugin.node.gpus.mig_needs import NodeMig
from gpushare_plugin.node.gpus.slices import NodeSlices
from gpushare_plugin.node.gpus.withdrawals import NodeWithdrawals
from gpushare_plugin.node.news.news import News
from gpushare_plugin.node.offer import NodeOffer
from gpushare_plugin.sharing.cut import PresentUnits
from gpushare_plugin.sharing.instances import Division, divided
from gpushare_plugin.sharing.isolation.hami_core import WithHamiCore
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.ways.way import SliceNumbers
from gpushare_plugin.slices.mig import MigProfile, MigRoom
from gpushare_plugin.slices.slice import SliceKind, slice_of
from gpushare_plugin.slices.wanted import SliceCounts
from tests.unit.sharing.holders import taken
from tests.verdicts.deciders.host import effective, in_ranges, inventory
from tests.verdicts.generate.cuts import driven

Json = dict[str, Any]


def decide(asked: Json) -> Json:
    """Return how the node stands after each step."""
    node = _Node(asked)
    return {"steps": [node.step(each) for each in asked["steps"]]}


class _Mig:
    """What `NodeSlices` asks of MIG instances, without the files that `gpushare mig` reads."""

    def __init__(self, profiles: Json) -> None:
        self.rooms = {uuid: MigRoom.of(MigProfile(**_tuples(each)) for each in of) for uuid, of in profiles.items()}
        self.division = Division()
        self.surplus: AbstractSet[str] = frozenset()

    def cut(
        self, wanted: Mapping[str, SliceCounts], found: Inventory, units: PresentUnits, *, manage: bool
    ) -> dict[str, SliceNumbers]:
        """Return which GPUs are offered."""
        held = {unit.gpu for unit in units.held.values()}
        self.division = divided(wanted, found, self.rooms, held, manage=manage)
        return {uuid: {} for uuid in sorted(self.division.offered)}

    def left_by_another(self, found: Inventory) -> dict[str, str]:
        """Return the instances that an earlier daemon offered."""
        return {
            each.uuid: f"nvidia.com/mig-{each.mig.profile}"
            for each in found.instances
            if each.mig is not None and slice_of(f"nvidia.com/mig-{each.mig.profile}")
        }

    @property
    def notices(self) -> tuple[str, ...]:
        """What cannot be."""
        return self.division.notices


def _mode(mode: object) -> object:
    """Return a mode as plain values, in the order of its fields, without those that have their default value.

    So a recorded mode stays true when modes get another field.
    """
    if isinstance(mode, WithHamiCore):
        return mode.isolation if mode.equal_parts is None else f"{mode.isolation}, 1/{mode.equal_parts}"
    if not isinstance(mode, msgspec.Struct):
        return mode
    found = ((each.default, getattr(mode, each.name)) for each in msgspec.structs.fields(mode))
    return [msgspec.to_builtins(value) for default, value in found if value != default]


def _tuples(profile: Json) -> Json:
    return {**profile, "starts": tuple(profile["starts"])}


class _Node:
    """The part of a daemon that decides what is listed, and pods that take units and end."""

    def __init__(self, asked: Json) -> None:
        self._kind: SliceKind | None = asked["kind"] or None
        self._cards: list[Json] = asked["cards"]
        self._profiles: Json = asked["profiles"]
        self._manage: bool = asked["manage"]
        self._config: Json = {"flags": {"migStrategy": "mixed"}} if self._kind == "mig" else {}
        self._now, self._pods = 0.0, 0
        self._held: dict[str, str] = {}
        self._asked_for: frozenset[str] = frozenset()
        news = News()
        self._mig = _Mig(asked["profiles"])
        self._withdrawals = NodeWithdrawals(lambda: self._now, lambda: self._asked_for)
        self._slices = NodeSlices(cast("NodeMig", self._mig), self._withdrawals, news)
        self._offer = NodeOffer(news, lambda: self._now)
        before = [(resource, id_) for resource, id_ in asked["held before"]]
        self._held |= {id_: f"team/before-{number}" for number, (_, id_) in enumerate(before)}
        self._offer.start(taken(before), inventory(self._cards), {})

    def step(self, step: Json) -> Json:
        """Let time pass and pods come and go, and return how the node stands then."""
        self._now += step["after"]
        if "gone" in step and step["gone"] < len(self._cards):
            self._cards = [each for each in self._cards if each["index"] != step["gone"]]
        found = inventory(self._cards)
        self._end(step)
        if not step["asked"]:
            self._offer.update_holdings(Unknown())
        else:
            pods = ((*pod.split("/"), id_) for id_, pod in self._held.items())
            held = (Holding(namespace, name, "main", "", frozenset({id_})) for namespace, name, id_ in pods)
            self._offer.update_holdings(Confirmed.of(tuple(held), self._now))
        self._follow(step, found)
        verdict = self._apply(found)
        if "problems" not in verdict:
            self._take(step)
        if step["driver"] and self._kind == "mig":
            self._drive()
        return verdict

    def _follow(self, step: Json, found: Inventory) -> None:
        if "annotations" in step and self._kind is not None:
            self._slices.follow(requested_slices(step["annotations"], found, self._kind))
        if "config" in step:
            self._config = step["config"]
        names = sorted(name for name in self._offer.resources if slice_of(name))
        self._asked_for = frozenset(names[:1]) if step["waits for"] else frozenset()
        schedulable = self._withdrawals.schedulable.value
        if step["shown"] and schedulable is not None:
            self._withdrawals.shown(schedulable)
        if step["exceeded"]:
            self._withdrawals.exceeded(dict.fromkeys(names, 1))
        if step["unwritable"]:
            self._withdrawals.failed()

    def _apply(self, found: Inventory) -> Json:
        verdict: Json = {}
        cut: Mapping[str, SliceNumbers] | None = None
        if self._kind is not None:
            units = self._offer.units(found)
            cut = self._slices.cut(self._kind, found, units, self._offer.resources, manage=self._manage)
            verdict |= self._cut(cut)
        planned = plan(effective(self._config, self._kind), found, cut=cut)
        if planned.problems:
            return {**verdict, "problems": [each.message for each in planned.problems]}
        self._offer.advance(planned, found)
        resources = {
            name: replace(each, withdrawn=self._withdrawals.ids) for name, each in self._offer.resources.items()
        }
        self._withdrawals.publish(self._kind, resources)
        verdict |= {
            "listed": {name: in_ranges(each.units) for name, each in resources.items()},
            "retired": {name: in_ranges(each.retired) for name, each in resources.items() if each.retired},
            "waiting": dict(self._offer.waiting),
            "withdrawn": in_ranges(self._withdrawals.ids),
            "hidden": in_ranges(self._withdrawals.hidden),
            "notices": [*planned.notices, *self._slices.notices(self._kind)],
            "modes": {uuid: _mode(mode) for uuid, mode in self._offer.modes_in_use.items() if mode is not None},
            "pause": round(self._offer.pause(self._withdrawals.pause(60.0)), 3),
        }
        return {key: value for key, value in verdict.items() if value}

    def _cut(self, cut: Mapping[str, SliceNumbers]) -> Json:
        if self._kind == "mig":
            division = self._mig.division
            places = {uuid: [str(each) for each in found] for uuid, found in division.places.items()}
            return {"places": places, "offered": sorted(cut), "lasting": sorted(division.lasting)}
        numbers = {uuid: {size.name: list(each) for size, each in found.items()} for uuid, found in cut.items()}
        return {"cut": numbers, "surplus": in_ranges(self._slices.surplus("mps"))}

    def _take(self, step: Json) -> None:
        """Have pods take units that are listed and idle."""
        idle = [id_ for each in self._offer.resources.values() for id_ in each.units if id_ not in self._held]
        for place in step["takes"]:
            if idle:
                self._held[idle.pop(int(place * len(idle)))] = f"team/p{self._pods}"
                self._pods += 1

    def _end(self, step: Json) -> None:
        for place in step["ends"]:
            if self._held:
                del self._held[sorted(self._held)[int(place * len(self._held))]]

    def _drive(self) -> None:
        """Have the driver make and destroy instances."""
        division, resources = self._mig.division, self._offer.resources.values()
        busy = {*self._held, *division.lasting, *(id_ for each in resources for id_ in (*each.units, *each.retired))}
        for number, card in enumerate(self._cards):
            if self._manage and card["migCapable"] and card["uuid"] not in busy:
                self._cards[number] = {**card, "mig": True}
            if card["uuid"] in division.places and card["mig"]:
                places = [str(each) for each in division.places[card["uuid"]]]
                found = driven(card, self._profiles.get(card["uuid"], ()), places, busy)
                self._cards[number] = {**card, "instances": found}

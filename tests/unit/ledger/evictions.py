"""Random preemptions for tests, and what is right for each: found by trying every set of pods."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations

from hypothesis import strategies as st

from gpushare_plugin.ledger.constraints import Requirement
from gpushare_plugin.ledger.disruption import Budget, Disruptions
from gpushare_plugin.ledger.node import Node
from gpushare_plugin.ledger.pod import Pod, shared_labels
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.ledger.verdicts import Fit
from tests.unit.ledger.objects import (
    account,
    container,
    cores_node,
    kind_node,
    memory_node,
    pod,
    request,
    uuid,
)

RUNS = int(os.environ.get("GPUSHARE_PREEMPTION_RUNS", "100"))
"""How many cases each test tries."""

PRIORITY = 3
"""The priority of the pod that asks: as important pods stay."""

Cost = tuple[int, int, list[tuple[int, float]]]
"""What is compared: pods, violations, and priorities and ages of the pods, the most important first."""


@dataclass(frozen=True)
class Case:
    """A node with pods, a request, the pods that kube-scheduler proposes, and budgets of the label `app`."""

    node: Node
    pods: tuple[Pod, ...]
    asked: PodRequest
    proposed: tuple[Pod, ...]
    allowed: dict[str, int]
    """How many evictions the budget of each app allows; of the app `""`, that of all apps."""

    @property
    def others(self) -> tuple[Pod, ...]:
        """The pods that may be added."""
        return tuple(each for each in self.pods if each not in self.proposed and each.priority < PRIORITY)

    @property
    def disruptions(self) -> Disruptions:
        """What gpushare knows of pods and budgets."""
        made = Disruptions()
        made.counted = True
        for app, allowed in self.allowed.items():
            selector = (Requirement("app", "In", (app,)),) if app else ()
            made.put_budget(Budget("default", f"budget-{app}", selector, allowed))
        return made

    def enough(self, added: Sequence[Pod]) -> bool:
        """Return whether the request fits without the proposed pods and these."""
        left = tuple(each for each in self.pods if each not in self.proposed and each not in added)
        return isinstance(account(self.node, pods=left).fit(self.asked, "node"), Fit)

    def violations(self, evicted: Sequence[Pod]) -> int:
        """Return how many evictions are one too many for some budget: the most important pod first, then by name."""
        left, violating = dict(self.allowed), 0
        for each in sorted(evicted, key=lambda pod: (-pod.priority, pod.started, pod.name)):
            covering = [app for app in left if app in {"", dict(each.labels.pairs)["app"]}]
            violating += any(left[app] <= 0 for app in covering)
            left.update({app: left[app] - 1 for app in covering})
        return violating

    def cost(self, added: Sequence[Pod]) -> Cost:
        """Return what evicting these beside the proposed pods costs."""
        ranks = sorted(((each.priority, -each.started) for each in added), reverse=True)
        return len(added), self.violations((*self.proposed, *added)), ranks

    @property
    def best(self) -> Cost | None:
        """What the best set of other pods costs, None where even all are not enough; every set is tried."""
        sets = chain.from_iterable(combinations(self.others, size) for size in range(len(self.others) + 1))
        return min((self.cost(each) for each in sets if self.enough(each)), default=None)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a node that shares memory, memory and compute, or whole GPUs, with pods on known, unknown and no GPUs."""
    kind = draw(st.sampled_from(("memory", "cores", "gpus")))
    number = draw(st.integers(1, 3))
    node = {
        "memory": memory_node(*[10] * number),
        "cores": cores_node(*[10] * number),
        "gpus": kind_node("nvidia.com/gpu", "gpus", *[1] * number),
    }[kind]

    def a_request(most: int) -> PodRequest:
        if kind == "gpus":
            return request(container("main", gpu=draw(st.integers(1, number))))
        gpus = draw(st.sampled_from((None, None, "2"))) if number > 1 and kind == "memory" else None
        size = draw(st.integers(1, most)) * (2 if gpus else 1)
        amounts = {"memory": size, "cores": size * 5} if kind == "cores" else {"memory": size}
        return request(container("main", "app", **amounts), gpus=gpus)

    pods: list[Pod] = []
    for index in range(draw(st.integers(0, 7))):
        asked = request(container("main", gpu=1)) if kind == "gpus" else a_request(6)
        if draw(st.integers(0, 5)) == 0:
            asked = request(container("main"))  # whoever proposes it needs its CPU
        on = draw(st.sampled_from((None, *map(uuid, range(number))))) if asked.gpu_count == 1 else None
        labels = shared_labels((("app", draw(st.sampled_from("ab"))),))
        priority, started = draw(st.integers(0, PRIORITY)), float(draw(st.integers(0, 2)))
        found = pod(asked, "node", f"pod-{index}", on=on, labels=labels, priority=priority, started=started)
        pods.append(found)
    return Case(
        node,
        tuple(pods),
        a_request(11),
        proposed=tuple(each for each in pods if each.priority < PRIORITY and draw(st.integers(0, 3)) == 0),
        allowed=draw(st.dictionaries(st.sampled_from(("", "a", "b")), st.integers(0, 2))),
    )

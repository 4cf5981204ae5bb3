"""What kube-scheduler asks an extender, for pods of many kinds."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.cluster.objects import MEMORY, REPLICAS, WHOLE, Object, a_pod
from benchmarks.cluster.wire import encoded

_KINDS: Sequence[tuple[dict[str, int], dict[str, Any]]] = (
    ({MEMORY: 4}, {}),
    ({MEMORY: 10}, {"owner": "set-1"}),
    ({MEMORY: 16}, {}),
    ({MEMORY: 24}, {"annotations": {"gpushare/placement": "spread"}, "owner": "set-2"}),
    ({MEMORY: 40}, {}),
    ({MEMORY: 72}, {}),
    ({MEMORY: 80}, {}),
    ({MEMORY: 48}, {"labels": {"aliyun.com/gpu-count": "4"}}),
    ({MEMORY: 12}, {"annotations": {"nvidia.com/use-gputype": "A100,H100"}}),
    ({REPLICAS: 2}, {}),
    ({WHOLE: 1}, {}),
    ({WHOLE: 4}, {}),
)
"""A dozen kinds of requests: what the container asks for, and what else there is to say."""

NEW_EVERY = 20
"""One of so many pods is of a kind that nobody has asked for before."""


def pods() -> Iterator[Object]:
    """Yield pods of a dozen kinds in turn, and now and then one that is like no other."""
    ordinary = itertools.cycle(_KINDS)
    for number in itertools.count():
        if is_new(number):
            unlike = number // NEW_EVERY
            yield a_pod(f"new-{number}", {MEMORY: 1 + unlike % 37}, {MEMORY: 1 + unlike // 37 % 37})
        else:
            limits, more = next(ordinary)
            yield a_pod(f"pod-{number}", limits, **more)


def is_new(number: int) -> bool:
    """Return whether a pod of `pods` is like no other."""
    return number % NEW_EVERY == NEW_EVERY - 1


def question(pod: Object, names: Sequence[str]) -> bytes:
    """Return what `filter` and `prioritize` are asked with `nodeCacheCapable`."""
    return encoded({"Pod": pod, "Nodes": None, "NodeNames": names})

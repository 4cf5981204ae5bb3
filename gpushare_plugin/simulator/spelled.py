"""Nodes and pods as people write them on a command line: `20xA100,gpus=8,cpu=96,memory=768Gi` and `60x81%,cpu=4`."""

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.ledger.quantity import QuantityError, amount
from gpushare_plugin.packing.pod_kind import WHOLE, PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.trace import MOST_AMOUNT, MOST_GPUS

MOST = 1_000_000
"""The most nodes or pods of one text."""
A_NUMBER_OF = "NUMBERxMODEL"
A_SHAPE = f"{A_NUMBER_OF},gpus=GPUS,cpu=CPUS,memory=MEMORY"
A_REQUEST = "PERCENT% of one GPU, or a number of GPUs"
_PODS = "NUMBERxPERCENT% or NUMBERxGPUS, then cpu=CPUS, memory=MEMORY and models=MODEL|MODEL if wanted"

_OF_NODES, _OF_PODS = ("gpus", "cpu", "memory"), ("cpu", "memory", "models")
_GPUS = re.compile(r"[1-9][0-9]?", re.ASCII)
_COUNTED = re.compile(r"([1-9][0-9]{0,6})x(.+)", re.ASCII)
_REQUEST = re.compile(r"(?:([1-9][0-9]?|100)%|([0-9]{1,2}))", re.ASCII)


class CountedNodes(NamedTuple):
    """A number of nodes, by the model of their GPUs."""

    number: int
    """The number of nodes."""
    model: str
    """The model, or whole words of its name."""


class WrittenNodes(NamedTuple):
    """A number of nodes, as written."""

    counted: CountedNodes
    """How many nodes, with GPUs of which model."""
    shape: NodeKind | None
    """The nodes; None if only their model is written."""


class GpuRequest(NamedTuple):
    """What a pod asks of GPUs."""

    gpus: int
    """The number of GPUs."""
    percent: int = WHOLE
    """The part of each GPU in percent; less than 100 with one GPU only."""

    def __str__(self) -> str:
        """Return the request in words."""
        if self.percent < WHOLE:
            return f"{self.percent} % of a GPU"
        return {0: "no GPU", 1: "one GPU"}.get(self.gpus, f"{self.gpus} GPUs")


def counted(text: str) -> CountedNodes:
    """Return the nodes that are written as `3xT4`; raises ValueError for another text."""
    if (found := _COUNTED.fullmatch(text.strip())) is None or int(found[1]) > MOST:
        raise ValueError(f"found {text!r}, expected {A_NUMBER_OF} with a number from 1 to {MOST:,}, such as 3xT4")
    return CountedNodes(int(found[1]), found[2].strip())


def written_nodes(text: str) -> WrittenNodes:
    """Return the nodes that are written as `10xA100`, alone or with a shape; raises ValueError for another text."""
    what, *parts = text.split(",")
    found = counted(what)
    if not parts:
        return WrittenNodes(found, None)
    keys = _keys(text, parts, _OF_NODES)
    if len(keys) < len(_OF_NODES):
        raise ValueError(f"found {text!r}, expected {A_SHAPE}, such as 20xA100,gpus=8,cpu=96,memory=768Gi")
    if _GPUS.fullmatch(keys["gpus"]) is None or int(keys["gpus"]) > MOST_GPUS:
        raise ValueError(f"found gpus={keys['gpus']} in {text!r}, expected a whole number from 1 to {MOST_GPUS}")
    return WrittenNodes(found, NodeKind(_cpu(keys), _mib(keys), int(keys["gpus"]), found.model))


def written_pods(text: str) -> tuple[PodKind, ...]:
    """Return the pods that are written as `60x81%,cpu=4,memory=16Gi`; raises ValueError for another text."""
    what, *parts = text.split(",")
    if (found := _COUNTED.fullmatch(what.strip())) is None or int(found[1]) > MOST:
        raise ValueError(f"found {text!r}, expected {_PODS}, such as 60x81%,cpu=4,memory=16Gi")
    asked, keys = request(found[2]), _keys(text, parts, _OF_PODS)
    models = frozenset(filter(None, keys.get("models", "").split("|"))) if asked.gpus else frozenset()
    return (PodKind(_cpu(keys), _mib(keys), asked.gpus, asked.percent, models),) * int(found[1])


def request(text: str) -> GpuRequest:
    """Return the request that is written as `81%` or `4`; raises ValueError for another text."""
    found = _REQUEST.fullmatch(text.strip())
    if found is None or int(found[2] or 0) > MOST_GPUS:
        raise ValueError(f"found {text!r}, expected {A_REQUEST}, such as 81% or 4")
    return GpuRequest(1, int(found[1])) if found[1] else GpuRequest(int(found[2]))


def change(text: str) -> tuple[GpuRequest, GpuRequest]:
    """Return the two requests that are written as `81%=70%`; raises ValueError for another text."""
    before, equals, after = text.partition("=")
    if not equals:
        raise ValueError(f"found {text!r}, expected REQUEST=REQUEST, such as 81%=70% or 2=1")
    return request(before), request(after)


def _keys(text: str, parts: Collection[str], expected: Collection[str]) -> dict[str, str]:
    """Return the values by key; raises ValueError for an unknown key, and for a key that comes twice."""
    keys: dict[str, str] = {}
    for part in parts:
        key, equals, value = map(str.strip, part.partition("="))
        if not equals or key not in expected or key in keys:
            raise ValueError(f"found {part!r} in {text!r}, expected each of {', '.join(expected)} once, as KEY=VALUE")
        keys[key] = value
    return keys


def _cpu(keys: Mapping[str, str]) -> int:
    """Return thousandths of a core."""
    return _amount(keys, "cpu", 1_000, 1)


def _mib(keys: Mapping[str, str]) -> int:
    """Return MiB."""
    return _amount(keys, "memory", 1, MIB)


def _amount(keys: Mapping[str, str], key: str, times: int, unit: int) -> int:
    text = keys.get(key, "0")
    try:
        found = -(-amount(text) * times // unit)
    except QuantityError as error:
        raise ValueError(f"{key}: {error}") from error
    if found > MOST_AMOUNT:
        raise ValueError(f"found {key}={text}, expected less")
    return int(found)

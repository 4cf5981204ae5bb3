"""What-ifs: the nodes and pods of a simulation with nodes added, nodes gone, and pods that ask for something else."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.memory import MIB_PER_GIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import amount_of, nearest, some_of
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.spelled import A_SHAPE, GpuRequest, WrittenNodes, counted

_SHOWN = 12
"""The most models or requests in a message."""


class WhatIfs(NamedTuple):
    """What is changed before a simulation."""

    added: Sequence[WrittenNodes] = ()
    """The nodes that come."""
    removed: Sequence[str] = ()
    """The nodes that go: each a name, or a number and a model such as `3xT4`."""
    requests: Sequence[tuple[GpuRequest, GpuRequest]] = ()
    """What pods ask for, and what they are to ask for instead."""


class FoundNode(NamedTuple):
    """A node with its name."""

    name: str
    """The name; empty if the node has none."""
    kind: NodeKind
    """The node without any pod."""


def changed_nodes(nodes: Sequence[FoundNode], changes: WhatIfs) -> tuple[tuple[NodeKind, ...], list[str]]:
    """Return the nodes after the changes, and a sentence for each change; raises GpushareError for nodes not there."""
    said, left = list[str](), list(nodes)
    for text in changes.removed:
        left, sentence = _without(left, text)
        said.append(sentence)
    came = list[NodeKind]()
    for each in changes.added:
        kind = _added(each, nodes)
        came += [kind] * each.counted.number
        said.append(f"{amount_of(each.counted.number, 'node')} added, with {_described(kind)}")
    return (*[node.kind for node in left], *came), said


def changed_pods(
    pods: Sequence[PodKind], requests: Sequence[tuple[GpuRequest, GpuRequest]]
) -> tuple[tuple[PodKind, ...], list[str]]:
    """Return the pods after the changes, and a sentence for each.

    Raises GpushareError for requests of no pod, and for two changes of one request.
    """
    instead = dict(requests)
    if twice := [request for request, number in Counter(before for before, _ in requests).items() if number > 1]:
        raise GpushareError(f"found several changes of pods that ask for {twice[0]}, expected one")
    found = Counter(map(_request, pods))
    for before in instead:
        if before not in found:
            asked = some_of([str(each) for each, _ in found.most_common()], _SHOWN)
            raise GpushareError(f"found no pod that asks for {before}; the pods ask for: {asked}")
    said = [f"{_pods(found[before])} for {after} instead of {before}" for before, after in instead.items()]
    return tuple(_asking(pod, instead) for pod in pods), said


def _request(pod: PodKind) -> GpuRequest:
    return GpuRequest(pod.gpus, pod.percent)


def _asking(pod: PodKind, instead: Mapping[GpuRequest, GpuRequest]) -> PodKind:
    after = instead.get(_request(pod))
    if after is None:
        return pod
    return replace(pod, gpus=after.gpus, percent=after.percent, models=pod.models if after.gpus else frozenset())


def _without(nodes: list[FoundNode], text: str) -> tuple[list[FoundNode], str]:
    """Return the nodes without those that a text tells, and a sentence."""
    if text in {node.name for node in nodes if node.name}:
        return [node for node in nodes if node.name != text], f"node {text} removed"
    try:
        number, written = counted(text)
    except ValueError as error:
        names = [node.name for node in nodes if node.name]
        meant = nearest(text, names)
        there = f"the name of a node{f' (did you mean {meant}?)' if meant else ''}, or " if names else ""
        raise GpushareError(f"found no node {text!r}, expected {there}a number and a model such as 3xT4") from error
    model = _model_there(written, nodes)
    places = [place for place, node in enumerate(nodes) if node.kind.model == model]
    if number > len(places):
        raise GpushareError(
            f"found {amount_of(len(places), 'node')} with GPUs {model}, expected {number:,} at least to remove"
        )
    gone = set(places[:number])
    left = [node for place, node in enumerate(nodes) if place not in gone]
    return left, f"{number:,} of {amount_of(len(places), 'node')} with GPUs {model} removed"


def _added(written: WrittenNodes, nodes: Sequence[FoundNode]) -> NodeKind:
    """Return the nodes to add: those that are written, or the commonest nodes with GPUs of the model.

    A written shape may be that of a new model: only the full name of a model means that model.
    """
    if written.shape is not None:
        named = _named(written.counted.model, _models(nodes))
        return replace(written.shape, model=named[0]) if named else written.shape
    model = _model_there(written.counted.model, nodes)
    return Counter(node.kind for node in nodes if node.kind.model == model).most_common(1)[0][0]


def _model_there(written: str, nodes: Sequence[FoundNode]) -> str:
    """Return the model with a name, or with whole words of a name; raises GpushareError for none and for several."""
    models = _models(nodes)
    words = re.compile(rf"(?<!\w){re.escape(written)}(?!\w)", re.IGNORECASE)
    like = _named(written, models) or [model for model in models if words.search(model)]
    if not like:
        raise GpushareError(
            f"found no node with GPUs {written}; the models are {some_of(models, _SHOWN)}; to add nodes of another "
            f"model, write {A_SHAPE}"
        )
    if len(like) > 1:
        raise GpushareError(f"found {written} in the names of {some_of(like, _SHOWN)}; write one of them in full")
    return like[0]


def _named(written: str, models: Sequence[str]) -> Sequence[str]:
    """Return the models with a name, in any case of letters."""
    return [model for model in models if model.lower() == written.lower()]


def _models(nodes: Sequence[FoundNode]) -> list[str]:
    return sorted({node.kind.model for node in nodes if node.kind.gpus})


def _pods(number: int) -> str:
    return "1 pod asks" if number == 1 else f"{number:,} pods ask"


def _described(kind: NodeKind) -> str:
    gpus = f"{amount_of(kind.gpus, 'GPU')} {kind.model}"
    return f"{gpus}, {kind.cpu / 1_000:g} cores and {kind.memory / MIB_PER_GIB:,.0f} GiB each"

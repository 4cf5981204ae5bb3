"""The annotations and labels on pods that concern GPUs: ours, Aliyun's, ACK's and HAMi's; text to values and back.

Anybody who may write a pod may write these. What cannot be read says nothing; what can be read is not true yet.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.model.account.node import GPU_COUNT, GPU_MEMORY, MOST_GPUS, Node
from gpushare_plugin.model.account.pod import Share, Shares
from gpushare_plugin.model.account.request import (
    ANY_GPU,
    MOST_WISHES,
    ContainerRequest,
    PodRequest,
    Wishes,
    bounded,
    shared_request,
)
from gpushare_plugin.model.account.scheduling.quantity import LARGEST_AMOUNT
from gpushare_plugin.model.account.search.verdicts import Placement
from gpushare_plugin.model.choice.policies import POLICIES

T = TypeVar("T")

ALLOCATION = "gpushare/allocation"
"""Written by the node's daemon: the units that containers really have."""
PROMISE = "gpushare/promise"
"""Written by the scheduler extender with the binding: the units that containers are to get."""

ALIYUN_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
ALIYUN_POD = "ALIYUN_COM_GPU_MEM_POD"
ALIYUN_DEVICE = "ALIYUN_COM_GPU_MEM_DEV"
ALIYUN_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
ALIYUN_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
"""Aliyun's: index of the GPU, units of the pod, units of the GPU, nanoseconds since 1970, whether containers run."""
ACK_ALLOCATION = "scheduler.framework.gpushare.allocation"
"""ACK's: units by the number of the container and the index of the GPU."""

PLACEMENT = "gpushare/placement"
HAMI_PLACEMENT = "hami.io/gpu-scheduler-policy"
"""The placement policy that a pod wants; ours has priority."""

HAMI_MODELS = "nvidia.com/use-gputype"
HAMI_NOT_MODELS = "nvidia.com/nouse-gputype"
HAMI_UUIDS = "nvidia.com/use-gpuuuid"
HAMI_NOT_UUIDS = "nvidia.com/nouse-gpuuuid"
"""The GPUs that a pod wants, or does not: lists separated by commas."""

MOST_SHARES = 1024
"""Entries that an annotation may have, for 16 GPUs of 64 containers: they are gone over while the kubelet waits."""

MOST_CHARACTERS = 64 * 1024
"""Characters of an annotation that says where units are: as many as MOST_SHARES entries take."""

LONGEST_WISH = 128
"""Characters of a name in a list of GPUs: models and UUIDs have some 40."""

_LONGEST_LIST = MOST_WISHES * (LONGEST_WISH + 2)

_SHOWN = 64
"""Characters of a text that messages repeat."""


_Gpus = dict[str, Annotated[int, msgspec.Meta(ge=1, le=LARGEST_AMOUNT)]]
"""Units by GPU."""
_Containers = dict[str, dict[str, _Gpus]]
"""Units by container, resource and GPU."""


class _Told(msgspec.Struct, frozen=True, gc=False):
    """The value of our annotations; only a promise has `node` and `time`."""

    version: Literal[1]
    containers: _Containers
    node: str = ""
    time: str = ""


_TOLD = msgspec.json.Decoder(_Told)
_BY_NUMBER = msgspec.json.Decoder(dict[str, _Gpus])


class AnnotationError(GpushareError):
    """The value of an annotation is not what belongs there."""


class Promise(NamedTuple):
    """What the extender wrote: the units of each container, on which node, and when (RFC 3339, for people)."""

    node: str
    time: str
    shares: Shares


class Claims(NamedTuple):
    """What the annotations of a pod say of its units; None where they say nothing."""

    allocation: Shares | None
    promise: Shares | None
    indexes: Shares | None


def pod_request(
    containers: Iterable[ContainerRequest],
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    problem: str | None = None,
) -> PodRequest:
    """Return what a pod asks for, given its containers in the order of their start.

    `problem` is what is known to be too much of it, and is not in `containers`.
    """
    policy, ignored = _policy(annotations)
    kept, more = bounded(tuple(containers), lambda: held_resources(annotations))
    problem = problem or more
    try:
        count = _gpu_count(labels[GPU_COUNT]) if GPU_COUNT in labels else 1
        wishes = _wishes(annotations)
    except AnnotationError as error:
        return shared_request(kept, 1, ANY_GPU, None, str(error), ())
    return shared_request(kept, count, wishes, policy, problem, ignored)


def held_resources(annotations: Mapping[str, str]) -> frozenset[str]:
    """Return the resources that the node's daemon says a pod has."""
    if (said := _said(ALLOCATION, annotations)) is None:
        return frozenset()
    return frozenset(name for resources in said.containers.values() for name in resources)


_PLACEMENTS = frozenset({PLACEMENT, HAMI_PLACEMENT})
_WISHES = frozenset({HAMI_MODELS, HAMI_NOT_MODELS, HAMI_UUIDS, HAMI_NOT_UUIDS})


def _wishes(annotations: Mapping[str, str]) -> Wishes:
    """Return the GPUs that a pod wants, which few do; raises AnnotationError."""
    if _WISHES.isdisjoint(annotations):
        return ANY_GPU
    return Wishes(
        _list(HAMI_MODELS, annotations.get(HAMI_MODELS, "").lower()),
        _list(HAMI_NOT_MODELS, annotations.get(HAMI_NOT_MODELS, "").lower()),
        _list(HAMI_UUIDS, annotations.get(HAMI_UUIDS, "")),
        _list(HAMI_NOT_UUIDS, annotations.get(HAMI_NOT_UUIDS, "")),
    )


def _policy(annotations: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the policy that a pod wants, and what of its wishes is not understood."""
    if _PLACEMENTS.isdisjoint(annotations):
        return None, ()
    ignored: list[str] = []
    for key in (PLACEMENT, HAMI_PLACEMENT):
        if (value := annotations.get(key)) is not None:
            if value in POLICIES:
                return value, tuple(ignored)
            ignored.append(f"annotation {key}: {value[:_SHOWN]!r} found, {' or '.join(POLICIES)} expected")
    return None, tuple(ignored)


def _gpu_count(text: str) -> int:
    """Return the GPUs that a pod's memory is split over."""
    digits = text.lstrip("0")
    if digits.isascii() and digits.isdigit() and len(digits) <= len(str(MOST_GPUS)) and int(digits) <= MOST_GPUS:
        return int(digits)
    raise AnnotationError(
        f"label {GPU_COUNT} of the pod: {text[:_SHOWN]!r} found, a number of GPUs from 1 to {MOST_GPUS} expected"
    )


def _list(key: str, text: str) -> tuple[str, ...]:
    """Return the names in a list."""
    if len(text) > _LONGEST_LIST:
        raise AnnotationError(f"annotation {key}: {len(text):,} characters found, at most {_LONGEST_LIST:,} allowed")
    names = {name.strip() for name in text.split(",")} - {""}
    if len(names) > MOST_WISHES:
        raise AnnotationError(f"annotation {key}: {len(names)} names found, at most {MOST_WISHES} allowed")
    if (longest := max(map(len, names), default=0)) > LONGEST_WISH:
        raise AnnotationError(
            f"annotation {key}: a name of {longest:,} characters found, at most {LONGEST_WISH} allowed"
        )
    return tuple(sorted(names))


def claims(annotations: Mapping[str, str], request: PodRequest, node: str | None) -> Claims:
    """Return what the annotations of a pod say of its units on its node; a promise for another node says nothing.

    Of a pod that has no node, nothing is kept but whether there is an allocation, which its Binding takes away.
    """
    if node is None:
        return Claims(None if ALLOCATION not in annotations else (), None, None)
    allocated, promised = _said(ALLOCATION, annotations), _said(PROMISE, annotations)
    allocation = _claimed(ALLOCATION, allocated)
    if promised is None or promised.node != node:
        promise = None
    elif allocated is not None and promised.containers == allocated.containers:
        # So it is for almost every pod that runs.
        promise = allocation
    else:
        promise = _claimed(PROMISE, promised)
    return Claims(allocation, promise, _indexes(annotations, request))


def _said(key: str, annotations: Mapping[str, str]) -> _Told | None:
    """Return the value of one of our annotations, None where there is none that can be read."""
    if (text := annotations.get(key)) is None:
        return None
    try:
        return _decoded(key, _TOLD, text)
    except AnnotationError:
        return None


def _claimed(key: str, told: _Told | None) -> Shares | None:
    """Return the units in the value of one of our annotations, None where it has more than any pod."""
    if told is None:
        return None
    try:
        return _shares(key, told.containers)
    except AnnotationError:
        return None


def read_allocation(text: str) -> Shares:
    """Return the units in the value of `gpushare/allocation`; raises AnnotationError for anything but version 1."""
    return _shares(ALLOCATION, _decoded(ALLOCATION, _TOLD, text).containers)


def write_allocation(shares: Shares) -> str:
    """Return the value of `gpushare/allocation`, the same for equal shares."""
    return _written({"version": 1, "containers": _by_container(shares)})


def truth_annotations(shares: Shares, request: PodRequest, indexes: Mapping[str, int]) -> dict[str, str]:
    """Return the annotations of what a pod has: ours, and for memory those that Aliyun's and ACK's tools read.

    `indexes` are those of the node's GPUs, by UUID.
    """
    found = {ALLOCATION: write_allocation(shares)}
    memory = [share for share in shares if share.resource == GPU_MEMORY]
    if memory and all(share.gpu in indexes for share in memory):
        used = sorted({indexes[share.gpu] for share in memory})
        found |= {
            ALIYUN_INDEX: ",".join(map(str, used)),
            ALIYUN_ASSIGNED: "true",
            ACK_ALLOCATION: _by_number(memory, request, indexes),
        }
    return found


def read_promise(text: str) -> Promise:
    """Return the value of `gpushare/promise`; raises AnnotationError for anything but version 1."""
    told = _decoded(PROMISE, _TOLD, text)
    return Promise(told.node, told.time, _shares(PROMISE, told.containers))


def promise_annotations(placement: Placement, request: PodRequest, node: Node, now: datetime) -> dict[str, str]:
    """Return the annotations of a Binding: our promise, and for memory what Aliyun's and ACK's tools read.

    `now` is an aware time, which nothing depends on.
    """
    promise = {
        "version": 1,
        "node": placement.node,
        "time": now.isoformat(timespec="seconds"),
        "containers": _by_container(placement.shares),
    }
    return {PROMISE: _written(promise), **_aliyun(placement.shares, request, node, now)}


def _aliyun(shares: Shares, request: PodRequest, node: Node, now: datetime) -> dict[str, str]:
    """Return the annotations that Aliyun's and ACK's tools read; they only know memory."""
    mine = [share for share in shares if share.resource == GPU_MEMORY]
    if not mine or GPU_MEMORY not in node.offers:
        return {}
    gpus = {gpu.name: gpu for gpu in node.offers[GPU_MEMORY].gpus}
    used = [gpus[name] for name in dict.fromkeys(share.gpu for share in mine)]
    return {
        ALIYUN_INDEX: ",".join(str(gpu.index) for gpu in used),
        ALIYUN_POD: str(request.amounts[GPU_MEMORY]),
        ALIYUN_DEVICE: str(max(gpu.units for gpu in used)),  # as the variable of this name
        ALIYUN_ASSUME_TIME: str(int(now.timestamp()) * 10**9 + now.microsecond * 1000),
        ALIYUN_ASSIGNED: "false",
        ACK_ALLOCATION: _by_number(mine, request, {name: gpu.index for name, gpu in gpus.items()}),
    }


def _by_number(memory: Iterable[Share], request: PodRequest, indexes: Mapping[str, int]) -> str:
    """Return units of memory as ACK's annotation has them: by the numbers of containers and the indices of GPUs."""
    numbers = {name: number for number, name in enumerate(_apps(request))}
    units: dict[str, dict[str, int]] = {}
    for share in memory:
        if share.container in numbers:
            units.setdefault(str(numbers[share.container]), {})[str(indexes[share.gpu])] = share.units
    return _written(units)


def _indexes(annotations: Mapping[str, str], request: PodRequest) -> Shares | None:
    """Return what Aliyun's and ACK's annotations say, GPUs by index; ACK's says more, so it has priority."""
    if GPU_MEMORY not in request.amounts:
        return None
    ack, index, units = annotations.get(ACK_ALLOCATION), annotations.get(ALIYUN_INDEX), annotations.get(ALIYUN_POD)
    texts = ack, index, units
    if sum([len(text or "") for text in texts]) > _REMEMBERED:
        return _of_texts(request, *texts)
    known = _SAID_OF.setdefault(request, {})
    if texts not in known:
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        known[texts] = _of_texts(request, *texts)
    return known[texts]


_REMEMBERED = 256
"""Characters of annotations that are kept with what they say; anybody can write long ones."""

_MOST_REMEMBERED = 256
"""Different ones of pods with the same request: there are few, for they name GPUs by small numbers."""

_SAID_OF: WeakKeyDictionary[PodRequest, dict[tuple[str | None, str | None, str | None], Shares | None]] = (
    WeakKeyDictionary()
)
"""What was found, for as long as there are pods with the request."""


def _of_texts(request: PodRequest, ack: str | None, index: str | None, units: str | None) -> Shares | None:
    """Return what these annotations say."""
    if ack is not None:
        try:
            names = dict(enumerate(_apps(request)))
            by_number = _decoded(ACK_ALLOCATION, _BY_NUMBER, ack)
            by_name = {names[_index(ACK_ALLOCATION, number)]: {GPU_MEMORY: gpus} for number, gpus in by_number.items()}
            return _shares(ACK_ALLOCATION, by_name)
        except (KeyError, AnnotationError):
            pass
    return None if index is None else _aliyun_indexes(request, index, units)


def _aliyun_indexes(request: PodRequest, index: str, pod: str | None) -> Shares | None:
    """Return what Aliyun's own annotation says: the whole pod on one GPU, or the same part of it on each of several."""
    try:
        gpus = sorted({_index(ALIYUN_INDEX, text) for text in index.split(",")})
        units = None if pod is None else _index(ALIYUN_POD, pod)
    except AnnotationError:
        return None
    memory = [(each, each.amount(GPU_MEMORY)) for each in request.containers if each.amount(GPU_MEMORY)]
    if len(gpus) * len(memory) > MOST_SHARES:
        return None
    # Aliyun's scheduler does not count init containers.
    counted = {None, request.amounts[GPU_MEMORY], sum(amount for each, amount in memory if each.kind == "app")}
    if units not in counted or any(amount % len(gpus) for _, amount in memory):
        return None
    return tuple(
        Share(container.name, GPU_MEMORY, str(gpu), amount // len(gpus)) for container, amount in memory for gpu in gpus
    )


def _apps(request: PodRequest) -> Iterator[str]:
    return (container.name for container in request.containers if container.kind == "app")


def _index(key: str, text: str) -> int:
    """Return a small number in a text."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_AMOUNT))):
        raise AnnotationError(f"annotation {key}: {text[:_SHOWN]!r} found, a number expected")
    return int(text)


def _decoded(key: str, decoder: msgspec.json.Decoder[T], text: str) -> T:
    """Return the value of an annotation; raises AnnotationError where it is not as the decoder expects it."""
    if len(text) > MOST_CHARACTERS:
        raise AnnotationError(f"annotation {key}: {len(text):,} characters found, at most {MOST_CHARACTERS:,} expected")
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise AnnotationError(f"annotation {key}: {text[:_SHOWN]!r} found: {error}") from error


def _shares(key: str, containers: _Containers) -> Shares:
    """Return units as shares; raises AnnotationError for more than any pod has."""
    # Plain loops: a large cluster has a hundred thousand of these annotations.
    shares = []
    for container, resources in containers.items():
        for resource, gpus in resources.items():
            for gpu, units in gpus.items():
                shares.append(Share(container, resource, gpu, units))
    if len(shares) > MOST_SHARES:
        raise AnnotationError(f"annotation {key}: {len(shares)} entries found, at most {MOST_SHARES} expected")
    return tuple(shares)


def _by_container(shares: Shares) -> dict[str, dict[str, dict[str, int]]]:
    return Placement("", shares).containers


def _written(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)

"""The annotations and labels of pods on GPUs, from gpushare, Aliyun, ACK and HAMi: text to values and back.

Every user with the right to write pods can write the annotations. Unreadable annotations count as missing; readable
annotations may be false.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.core.effect import Effect
from gpushare_plugin.core.policies import POLICIES
from gpushare_plugin.ledger.node import GPU_COUNT, GPU_MEMORY, MOST_GPUS, Node
from gpushare_plugin.ledger.pod import Share, Shares
from gpushare_plugin.ledger.quantity import LARGEST_AMOUNT
from gpushare_plugin.ledger.request import (
    ANY_GPU,
    MOST_WISHES,
    ContainerRequest,
    PodRequest,
    Wishes,
    bounded,
    shared_request,
)
from gpushare_plugin.ledger.verdicts import PodPlace

T = TypeVar("T")

ALLOCATION = "gpushare/allocation"
"""The annotation of the node's daemon: the units held by containers."""
PROMISE = "gpushare/promise"
"""The annotation of the scheduler extender, written with the Binding: the units promised to containers."""

LIMITS = "gpushare/limits"
"""The annotation of the node's daemon: whether the limits of containers are in effect."""

ALIYUN_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
"""Aliyun's annotation with the index of the GPU, or several indexes separated by commas."""
ALIYUN_POD = "ALIYUN_COM_GPU_MEM_POD"
"""Aliyun's annotation with the units of the pod."""
ALIYUN_DEVICE = "ALIYUN_COM_GPU_MEM_DEV"
"""Aliyun's annotation with the units of the GPU."""
ALIYUN_ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
"""Aliyun's annotation with the time of the promise, in nanoseconds since 1970."""
ALIYUN_ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
"""Aliyun's annotation on whether the containers run: `true` or `false`."""
ACK_ALLOCATION = "scheduler.framework.gpushare.allocation"
"""ACK's annotation with the units by the number of the container and the index of the GPU."""

PLACEMENT = "gpushare/placement"
"""The annotation with the policy of a pod; goes before HAMi's."""
HAMI_PLACEMENT = "hami.io/gpu-scheduler-policy"
"""HAMi's annotation with the policy of a pod."""

HAMI_MODELS = "nvidia.com/use-gputype"
"""HAMi's annotation with accepted models, separated by commas."""
HAMI_NOT_MODELS = "nvidia.com/nouse-gputype"
"""HAMi's annotation with rejected models, separated by commas."""
HAMI_UUIDS = "nvidia.com/use-gpuuuid"
"""HAMi's annotation with the UUIDs of accepted GPUs, separated by commas."""
HAMI_NOT_UUIDS = "nvidia.com/nouse-gpuuuid"
"""HAMi's annotation with the UUIDs of rejected GPUs, separated by commas."""

MOST_SHARES = 1024
"""The most entries of an annotation, enough for 64 containers on 16 GPUs; the kubelet waits while entries are read."""

MOST_CHARACTERS = 64 * 1024
"""The most characters of an annotation with units: the length of MOST_SHARES entries."""

_LONGEST_REASON = 256
"""The most characters of a reason in `gpushare/limits`."""

LONGEST_WISH = 128
"""The most characters of a name in a list of GPUs: models and UUIDs have some 40."""

_LONGEST_LIST = MOST_WISHES * (LONGEST_WISH + 2)

_SHOWN = 64
"""The most characters of a text repeated in messages."""


_Gpus = dict[str, Annotated[int, msgspec.Meta(ge=1, le=LARGEST_AMOUNT)]]
"""Units by GPU."""
_Containers = dict[str, dict[str, _Gpus]]
"""Units by container, resource and GPU."""


class _AnnotationValue(msgspec.Struct, frozen=True, gc=False):
    """The value of an annotation of gpushare."""

    version: Literal[1]
    """The version of the format."""
    containers: _Containers
    """The units by container, resource and GPU."""
    node: str = ""
    """The node of a promise; empty in an allocation."""
    time: str = ""
    """The time of a promise; empty in an allocation."""


_VALUE_DECODER = msgspec.json.Decoder(_AnnotationValue)
_BY_NUMBER_DECODER = msgspec.json.Decoder(dict[str, _Gpus])


class AnnotationError(GpushareError):
    """The value of an annotation differs from the expected format."""


class Promise(NamedTuple):
    """The value of `gpushare/promise`, written by the scheduler extender."""

    node: str
    """The node of the promise."""
    time: str
    """The time of the promise (RFC 3339), for people."""
    shares: Shares
    """The units of each container."""


class AnnotatedShares(NamedTuple):
    """The units of a pod as its annotations say, which may be false: `occupancy` decides which of them to believe."""

    allocation: Shares | None
    """The units written by the daemon of the node; None without a readable annotation."""
    promise: Shares | None
    """The units promised by the scheduler extender for the node of the pod; None without a readable promise."""
    indexes: Shares | None
    """The units in Aliyun's or ACK's annotations, with GPUs by index; None without readable annotations."""


def pod_request(
    containers: Iterable[ContainerRequest],
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    problem: str | None = None,
) -> PodRequest:
    """Return the request of a pod with the given containers, in the order of their start.

    `problem` says which parts of the pod are beyond the bounds and missing in `containers`; None for no part.
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
    """Return the resources held by a pod according to the annotation of the node's daemon."""
    if (value := _read(ALLOCATION, annotations)) is None:
        return frozenset()
    return frozenset(name for resources in value.containers.values() for name in resources)


_PLACEMENTS = frozenset({PLACEMENT, HAMI_PLACEMENT})
_WISHES = frozenset({HAMI_MODELS, HAMI_NOT_MODELS, HAMI_UUIDS, HAMI_NOT_UUIDS})


def _wishes(annotations: Mapping[str, str]) -> Wishes:
    """Return the GPUs accepted by a pod: ANY_GPU for most pods; raises AnnotationError."""
    if _WISHES.isdisjoint(annotations):
        return ANY_GPU
    return Wishes(
        _list(HAMI_MODELS, annotations.get(HAMI_MODELS, "").lower()),
        _list(HAMI_NOT_MODELS, annotations.get(HAMI_NOT_MODELS, "").lower()),
        _list(HAMI_UUIDS, annotations.get(HAMI_UUIDS, "")),
        _list(HAMI_NOT_UUIDS, annotations.get(HAMI_NOT_UUIDS, "")),
    )


def _policy(annotations: Mapping[str, str]) -> tuple[str | None, tuple[str, ...]]:
    """Return the policy wanted by a pod, and a sentence for each policy annotation with an unknown value."""
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
    """Return the number of GPUs to split a pod's memory over; raises AnnotationError."""
    digits = text.lstrip("0")
    if digits.isascii() and digits.isdigit() and len(digits) <= len(str(MOST_GPUS)) and int(digits) <= MOST_GPUS:
        return int(digits)
    raise AnnotationError(
        f"label {GPU_COUNT} of the pod: {text[:_SHOWN]!r} found, a number of GPUs from 1 to {MOST_GPUS} expected"
    )


def _list(key: str, text: str) -> tuple[str, ...]:
    """Return the distinct names in a list, sorted; raises AnnotationError."""
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


def annotated_shares(annotations: Mapping[str, str], request: PodRequest, node: str | None) -> AnnotatedShares:
    """Return the units of a pod on its node in the annotations; a promise for another node does not count.

    For a pod without a node, the result only says whether an allocation exists, as an empty tuple: the Binding of the
    pod empties the annotation.
    """
    if node is None:
        return AnnotatedShares(None if ALLOCATION not in annotations else (), None, None)
    allocated, promised = _read(ALLOCATION, annotations), _read(PROMISE, annotations)
    allocation = _read_shares(ALLOCATION, allocated)
    if promised is None or promised.node != node:
        promise = None
    elif allocated is not None and promised.containers == allocated.containers:
        # The usual case: almost every running pod has the promised units. Both fields share the object.
        promise = allocation
    else:
        promise = _read_shares(PROMISE, promised)
    return AnnotatedShares(allocation, promise, _indexes(annotations, request))


def _read(key: str, annotations: Mapping[str, str]) -> _AnnotationValue | None:
    """Return the value of an annotation of gpushare; None for a missing or unreadable annotation."""
    if (text := annotations.get(key)) is None:
        return None
    try:
        return _decoded(key, _VALUE_DECODER, text)
    except AnnotationError:
        return None


def _read_shares(key: str, value: _AnnotationValue | None) -> Shares | None:
    """Return the units in the value of an annotation of gpushare; None without a value, or for too many entries."""
    if value is None:
        return None
    try:
        return _shares(key, value.containers)
    except AnnotationError:
        return None


def read_allocation(text: str) -> Shares:
    """Return the units in the value of `gpushare/allocation`; raises AnnotationError for anything but version 1."""
    return _shares(ALLOCATION, _decoded(ALLOCATION, _VALUE_DECODER, text).containers)


def write_allocation(shares: Shares) -> str:
    """Return the value of `gpushare/allocation`, the same for equal shares."""
    return _written({"version": 1, "containers": _by_container(shares)})


Effects = Mapping[str, Mapping[str, Effect]]
"""Whether limits are in effect, by container and GPU."""


class _LimitsValue(msgspec.Struct, frozen=True, gc=False):
    """The value of `gpushare/limits`."""

    version: Literal[1]
    """The version of the format."""
    containers: dict[str, dict[str, Effect]]
    """Whether limits are in effect, by container and GPU."""


_LIMITS_DECODER = msgspec.json.Decoder(_LimitsValue)


def read_limits(text: str) -> Effects:
    """Return the value of `gpushare/limits`; raises AnnotationError for anything but version 1."""
    return _decoded(LIMITS, _LIMITS_DECODER, text).containers


def write_limits(effects: Effects) -> str:
    """Return the value of `gpushare/limits`, the same for equal effects, with the beginnings of long reasons."""
    containers = {
        container: {gpu: _effect_value(effect) for gpu, effect in gpus.items()} for container, gpus in effects.items()
    }
    return _written({"version": 1, "containers": containers})


def _effect_value(effect: Effect) -> dict[str, object]:
    value: dict[str, object] = {"state": effect.state}
    if effect.reason:
        value["reason"] = effect.reason[:_LONGEST_REASON]
    if effect.seconds is not None:
        value["seconds"] = round(effect.seconds)
    return value


def holding_annotations(shares: Shares, request: PodRequest, indexes: Mapping[str, int]) -> dict[str, str]:
    """Return the annotations on the units that a pod holds: gpushare's, and for memory also Aliyun's and ACK's.

    `indexes` has the index of each GPU of the node, by UUID.
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
    value = _decoded(PROMISE, _VALUE_DECODER, text)
    return Promise(value.node, value.time, _shares(PROMISE, value.containers))


def promise_annotations(place: PodPlace, request: PodRequest, node: Node, now: datetime) -> dict[str, str]:
    """Return the annotations of a Binding: gpushare's promise, and for memory also Aliyun's and ACK's annotations.

    `now` is an aware time, written for people and tools; gpushare decides nothing by the time.
    """
    promise = {
        "version": 1,
        "node": place.node,
        "time": now.isoformat(timespec="seconds"),
        "containers": _by_container(place.shares),
    }
    return {PROMISE: _written(promise), **_aliyun(place.shares, request, node, now)}


def _aliyun(shares: Shares, request: PodRequest, node: Node, now: datetime) -> dict[str, str]:
    """Return the annotations for Aliyun's and ACK's tools, which only know memory."""
    mine = [share for share in shares if share.resource == GPU_MEMORY]
    if not mine or GPU_MEMORY not in node.offers:
        return {}
    gpus = {gpu.name: gpu for gpu in node.offers[GPU_MEMORY].gpus}
    used = [gpus[name] for name in dict.fromkeys(share.gpu for share in mine)]
    return {
        ALIYUN_INDEX: ",".join(str(gpu.index) for gpu in used),
        ALIYUN_POD: str(request.amounts[GPU_MEMORY]),
        ALIYUN_DEVICE: str(max(gpu.units for gpu in used)),  # like the environment variable of the same name
        ALIYUN_ASSUME_TIME: str(int(now.timestamp()) * 10**9 + now.microsecond * 1000),
        ALIYUN_ASSIGNED: "false",
        ACK_ALLOCATION: _by_number(mine, request, {name: gpu.index for name, gpu in gpus.items()}),
    }


def _by_number(memory: Iterable[Share], request: PodRequest, indexes: Mapping[str, int]) -> str:
    """Return units of memory in the form of ACK's annotation: by the numbers of containers and the indexes of GPUs."""
    numbers = {name: number for number, name in enumerate(_apps(request))}
    units: dict[str, dict[str, int]] = {}
    for share in memory:
        if share.container in numbers:
            units.setdefault(str(numbers[share.container]), {})[str(indexes[share.gpu])] = share.units
    return _written(units)


def _indexes(annotations: Mapping[str, str], request: PodRequest) -> Shares | None:
    """Return the units in ACK's or else Aliyun's annotations, with GPUs by index; ACK's annotation has more detail."""
    if GPU_MEMORY not in request.amounts:
        return None
    ack, index, units = annotations.get(ACK_ALLOCATION), annotations.get(ALIYUN_INDEX), annotations.get(ALIYUN_POD)
    texts = ack, index, units
    if sum([len(text or "") for text in texts]) > _REMEMBERED:
        return _of_texts(request, *texts)
    known = _KNOWN_INDEXES.setdefault(request, {})
    if texts not in known:
        if len(known) >= _MOST_REMEMBERED:
            known.clear()
        known[texts] = _of_texts(request, *texts)
    return known[texts]


_REMEMBERED = 256
"""The most characters of annotations kept with their units; any user could write longer annotations."""

_MOST_REMEMBERED = 256
"""The most different annotations kept for pods with the same request: usually few, with small indexes of GPUs."""

_KNOWN_INDEXES: WeakKeyDictionary[PodRequest, dict[tuple[str | None, str | None, str | None], Shares | None]] = (
    WeakKeyDictionary()
)
"""The results of `_indexes` by request and annotations, kept while pods with the request exist."""


def _of_texts(request: PodRequest, ack: str | None, index: str | None, units: str | None) -> Shares | None:
    """Return the units in ACK's annotation, or else in Aliyun's annotations; None if unreadable."""
    if ack is not None:
        try:
            names = dict(enumerate(_apps(request)))
            by_number = _decoded(ACK_ALLOCATION, _BY_NUMBER_DECODER, ack)
            by_name = {names[_index(ACK_ALLOCATION, number)]: {GPU_MEMORY: gpus} for number, gpus in by_number.items()}
            return _shares(ACK_ALLOCATION, by_name)
        except (KeyError, AnnotationError):
            pass
    return None if index is None else _aliyun_indexes(request, index, units)


def _aliyun_indexes(request: PodRequest, index: str, pod: str | None) -> Shares | None:
    """Return the units in Aliyun's annotations: the whole pod on a single GPU, or equal parts on several GPUs."""
    try:
        gpus = sorted({_index(ALIYUN_INDEX, text) for text in index.split(",")})
        units = None if pod is None else _index(ALIYUN_POD, pod)
    except AnnotationError:
        return None
    memory = [(each, each.amount(GPU_MEMORY)) for each in request.containers if each.amount(GPU_MEMORY)]
    if len(gpus) * len(memory) > MOST_SHARES:
        return None
    # Aliyun's scheduler counts the units of app containers only.
    counted = {None, request.amounts[GPU_MEMORY], sum(amount for each, amount in memory if each.kind == "app")}
    if units not in counted or any(amount % len(gpus) for _, amount in memory):
        return None
    return tuple(
        Share(container.name, GPU_MEMORY, str(gpu), amount // len(gpus)) for container, amount in memory for gpu in gpus
    )


def _apps(request: PodRequest) -> Iterator[str]:
    return (container.name for container in request.containers if container.kind == "app")


def _index(key: str, text: str) -> int:
    """Return the number in a text of at most as many digits as LARGEST_AMOUNT; raises AnnotationError."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_AMOUNT))):
        raise AnnotationError(f"annotation {key}: {text[:_SHOWN]!r} found, a number expected")
    return int(text)


def _decoded(key: str, decoder: msgspec.json.Decoder[T], text: str) -> T:
    """Return the decoded value of an annotation; raises AnnotationError."""
    if len(text) > MOST_CHARACTERS:
        raise AnnotationError(f"annotation {key}: {len(text):,} characters found, at most {MOST_CHARACTERS:,} expected")
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise AnnotationError(f"annotation {key}: {text[:_SHOWN]!r} found: {error}") from error


def _shares(key: str, containers: _Containers) -> Shares:
    """Return units as shares; raises AnnotationError for more than MOST_SHARES entries."""
    # Plain loops for speed: a large cluster has a hundred thousand annotations.
    shares = []
    for container, resources in containers.items():
        for resource, gpus in resources.items():
            for gpu, units in gpus.items():
                shares.append(Share(container, resource, gpu, units))
    if len(shares) > MOST_SHARES:
        raise AnnotationError(f"annotation {key}: {len(shares)} entries found, at most {MOST_SHARES} expected")
    return tuple(shares)


def _by_container(shares: Shares) -> dict[str, dict[str, dict[str, int]]]:
    return PodPlace("", shares).containers


def _written(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)

"""Tests of `gpushare_plugin.core.in_effect` and `breaches`: what facts say about limits, and what is told of it."""

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.breaches import Breaches
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.core.effect import IN_EFFECT, Effect, State, not_in_effect, unknown, worst
from gpushare_plugin.core.in_effect import (
    ClientNamespace,
    DriverAnswer,
    ProcessFacts,
    PromisedLimit,
    by_driver,
    of_processes,
    together,
)
from gpushare_plugin.core.usage import ContainerUsage

LIST, PIPE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY"
OWN, DEFAULT = {PIPE: "/mps/pipe", LIST: "0=4096M"}, {PIPE: "/mps/pipe"}
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
THREADS = {**DEFAULT, PERCENTAGE: "25"}
HAMI = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m"}
CLIENT = ProcessFacts(7, OWN, client=True)
OWN_NAMESPACE = ClientNamespace("c_own", 4096 * MIB)
LIBRARY = ProcessFacts(7, HAMI, library=True)


def judged(isolation: str, grant: dict[str, str], *processes: ProcessFacts) -> Effect:
    """Return the effect of the limit of a container with one GPU."""
    return of_processes(PromisedLimit(isolation, ("GPU-1",), (grant,) if grant else ()), processes)


@pytest.mark.parametrize(
    ("grant", "changes", "state", "words"),
    [
        (OWN, {}, "in effect", ""),
        (OWN, {"client": None, "unlisted": "may be no client"}, "unknown", "process 7 may be no client"),
        (OWN, {"client": False}, "not in effect", "process 7 is not a client of MPS"),
        (OWN, {"client": False, "environment": None, "unread": "hidden"}, "not in effect", "is not a client of MPS"),
        (OWN, {"environment": None, "unread": "must not be examined"}, "unknown", "process 7 must not be examined"),
        (OWN, {"environment": {}}, "unknown", "shows none of the variables of its container"),
        (OWN, {"environment": {**OWN, LIST: "0=80G"}}, "not in effect", f"process 7 has another {LIST} than"),
        (OWN, {"environment": {**OWN, LIST: "0=80G"}, "client": None}, "not in effect", f"has another {LIST} than"),
        (OWN, {"doubt": "limits were changed"}, "in effect", ""),
        (OWN, {"over": True}, "not in effect", "process 7 uses more memory than the limit, which is for each process"),
        (DEFAULT, {"environment": DEFAULT}, "in effect", ""),
        (DEFAULT, {"environment": {**DEFAULT, LIST: "0=80G"}}, "in effect", ""),
        (
            DEFAULT,
            {"environment": {**DEFAULT, LIST: "0=1G,1=1G"}},
            "not in effect",
            "names a GPU which it does not see",
        ),
        (DEFAULT, {"environment": DEFAULT, "doubt": "limits were changed"}, "not in effect", "limits were changed"),
        (THREADS, {"environment": {**THREADS, PERCENTAGE: "100"}}, "not in effect", f"another {PERCENTAGE} than"),
        (THREADS, {"environment": {**THREADS, PERCENTAGE: "100"}, "namespace": OWN_NAMESPACE}, "in effect", ""),
        (
            THREADS,
            {"environment": {**THREADS, LIST: "0=1G,1=1G"}, "namespace": OWN_NAMESPACE},
            "not in effect",
            "names a GPU which it does not see",
        ),
        ({}, {}, "unknown", "the kubelet's checkpoint does not show"),
    ],
)
def test_limits_by_mps(grant: dict[str, str], changes: dict[str, object], state: State, words: str) -> None:
    """A client with the variables of its container is limited; all else says what is missing, or how it escapes."""
    found = judged("mps", grant, replace(CLIENT, **changes))
    assert (found.state, words in found.reason, bool(found.reason)) == (state, True, bool(words))


@pytest.mark.parametrize(
    ("threads", "changes", "state"),
    [
        (25, {PERCENTAGE: "100"}, "in effect"),
        (25, {PERCENTAGE: None}, "in effect"),
        (25, {PERCENTAGE: "100", LIST: "0=1G,1=1G"}, "not in effect"),
        (50, {PERCENTAGE: "100"}, "not in effect"),
        (None, {PERCENTAGE: "100"}, "not in effect"),
    ],
)
def test_mps_holds_clients_to_its_own_percentage(
    threads: int | None, changes: dict[str, str | None], state: State
) -> None:
    """Whatever percentage a client sets, it gets no more than the default of the MPS control daemon."""
    found = {name: value for name, value in {**THREADS, **changes}.items() if value is not None}
    promise = PromisedLimit("mps", ("GPU-1",), (THREADS,), threads=threads)
    assert of_processes(promise, [replace(CLIENT, environment=found)]).state == state


@pytest.mark.parametrize(
    ("changes", "state", "words"),
    [
        ({}, "in effect", ""),
        ({"library": False}, "not in effect", "process 7 does not have HAMi's library, libvgpu.so"),
        ({"library": None, "unread": "must not be examined"}, "unknown", "process 7 must not be examined"),
        (
            {"environment": {**HAMI, "CUDA_DISABLE_CONTROL": "true"}},
            "not in effect",
            "a CUDA_DISABLE_CONTROL of its own",
        ),
        ({"environment": {"CUDA_DEVICE_MEMORY_LIMIT_0": "80g"}}, "not in effect", "another CUDA_DEVICE_MEMORY_LIMIT_0"),
        ({"environment": None, "library": None, "unread": "hidden"}, "unknown", "process 7 hidden"),
        ({"client": None}, "in effect", ""),
    ],
)
def test_limits_by_hamis_library(changes: dict[str, object], state: State, words: str) -> None:
    """The library has to be in the process, with the variables of its container."""
    found = judged("hami-core", HAMI, replace(LIBRARY, **changes))
    assert (found.state, words in found.reason, bool(found.reason)) == (state, True, bool(words))


def test_one_process_that_escapes_counts_for_the_container() -> None:
    """The gravest of all processes is the effect for the container; without a process it is unknown."""
    escaped, hidden = replace(CLIENT, pid=8, client=False), replace(CLIENT, pid=9, environment=None, unread="hidden")
    assert judged("mps", OWN, CLIENT, hidden, escaped) == not_in_effect("process 8 is not a client of MPS")
    assert judged("mps", OWN, CLIENT, hidden).state == "unknown"
    assert judged("mps", OWN) == unknown("no process of the container uses the GPU")
    assert worst([IN_EFFECT, Effect("in effect since", seconds=3)]).state == "in effect since"


def test_a_process_has_to_fit_one_container_of_its_pod() -> None:
    """Which container a process is in is not always known: the variables of each container of the pod are right."""
    small, large = OWN, {**OWN, LIST: "0=8192M"}
    promise = PromisedLimit("mps", ("GPU-1",), (small, large))
    assert of_processes(promise, [replace(CLIENT, environment=large), CLIENT]) == IN_EFFECT
    assert of_processes(promise, [replace(CLIENT, environment={**OWN, LIST: "0=80G"})]).state == "not in effect"


@pytest.mark.parametrize(
    ("used", "own", "words"),
    [
        (OWN_NAMESPACE, {"c_own"}, ""),
        (OWN_NAMESPACE, {"c_own", "c_side"}, ""),
        (OWN_NAMESPACE, set(), ""),
        (ClientNamespace("c_own", 2048 * MIB), {"c_own"}, ""),
        (ClientNamespace("c_own"), {"c_own"}, ""),
        (
            ClientNamespace("c_own", 6144 * MIB),
            {"c_own"},
            "process 7 uses the MPS namespace c_own, where MPS allows 6144 MiB of each GPU, instead of 4096 MiB",
        ),
        (
            ClientNamespace("c_big", 4096 * MIB),
            {"c_own", "c_side"},
            "process 7 uses the MPS namespace c_big, which has the limits of others, instead of c_own or c_side",
        ),
    ],
)
def test_a_client_has_to_use_its_namespace_with_no_more_than_promised(
    used: ClientNamespace, own: set[str], words: str
) -> None:
    """A lower limit still holds. Without the units of the container, its namespace is unknown, and any will do."""
    promise = PromisedLimit("mps", ("GPU-1",), (DEFAULT,), 4096 * MIB, frozenset(own))
    found = of_processes(promise, [replace(CLIENT, environment=DEFAULT, namespace=used)])
    assert found == (not_in_effect(words) if words else IN_EFFECT)


TWO, FOUR = MemoryLimit(2048 * MIB), MemoryLimit(4096 * MIB)
RIGHT = "instead of a hard limit of 2048 MiB or a hard limit of 4096 MiB"
NOTHING = DriverAnswer(reason="the driver knows none", unlimited=True)


@pytest.mark.parametrize(
    ("facts", "others", "late", "expected"),
    [
        (DriverAnswer(TWO, 0), False, 0.0, IN_EFFECT),
        (DriverAnswer(FOUR, 0), False, 0.0, IN_EFFECT),
        (DriverAnswer(TWO, 0), False, 3.0, Effect("in effect since", seconds=3.0)),
        (
            DriverAnswer(MemoryLimit(6144 * MIB), 0),
            True,
            0.0,
            not_in_effect(f"the driver reports a hard limit of 6144 MiB for the container, {RIGHT}"),
        ),
        (
            DriverAnswer(NO_LIMIT, 0),
            True,
            0.0,
            not_in_effect(f"the driver reports no limit for the container, {RIGHT}"),
        ),
        (NOTHING, False, 0.0, unknown("the driver knows none")),
        (
            NOTHING,
            True,
            0.0,
            not_in_effect("the driver knows no limit of the container, and knows limits of others on the GPU"),
        ),
        (DriverAnswer(reason="too old", unenforced=True), False, 0.0, not_in_effect("too old")),
        (DriverAnswer(reason="no cgroup"), True, 0.0, unknown("no cgroup")),
    ],
)
def test_limits_by_the_driver(facts: DriverAnswer, late: float, expected: Effect, *, others: bool) -> None:
    """What the driver reports has to be what was promised, in whichever way it was promised."""
    assert by_driver([TWO, FOUR, FOUR], facts, others=others, late=late) == expected


def test_a_limit_by_the_driver_holds_whatever_processes_do() -> None:
    """With limits by driver and MPS, the memory is limited while the driver limits it; else the gravest counts."""
    escaped, open_ = not_in_effect("it escaped"), unknown("nobody knows")
    assert together(IN_EFFECT, [escaped]) == IN_EFFECT
    assert together(open_, [IN_EFFECT]) == open_
    assert together(open_, [escaped]) == escaped
    assert together(escaped, [IN_EFFECT]) == escaped
    assert together(None, [IN_EFFECT]) == IN_EFFECT


def test_effects_have_words() -> None:
    """People read the state, the delay and the reason."""
    assert Effect("in effect since", seconds=12.3).words == "in effect since 12 s after the start of the container"
    assert not_in_effect("it escaped").words == "not in effect: it escaped"
    assert IN_EFFECT.words == "in effect"


def test_a_breach_is_told_once() -> None:
    """A breach begins once, however long it lasts and whatever is unknown meanwhile, and again only after its end."""
    breaches = Breaches()
    broken, open_, well = not_in_effect("it escaped"), unknown("nobody knows"), IN_EFFECT
    told = []
    for effect in (well, broken, broken, open_, broken, well, broken, None, broken):
        turn = breaches.follow([ContainerUsage("default", "a", "main", "uid", "GPU-1", "mem", 1, effect=effect)])
        told.append((len(turn.began), len(turn.ended)))
    assert told == [(0, 0), (1, 0), (0, 0), (0, 0), (0, 0), (0, 1), (1, 0), (0, 0), (1, 0)]

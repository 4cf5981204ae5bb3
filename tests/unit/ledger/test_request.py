"""Tests of `gpushare_plugin.ledger.request`."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.ledger.request import (
    ANY_GPU,
    ContainerKind,
    PodRequest,
    Wishes,
    effective,
    essence,
    shared_request,
)
from tests.unit.ledger.objects import container

KINDS: list[ContainerKind] = ["init", "sidecar"]


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9))), st.lists(st.integers(0, 9)))
def test_amounts_count_as_in_kubernetes(inits: list[tuple[ContainerKind, int]], apps: list[int]) -> None:
    """The sum of containers and sidecars, or more where an init container needs more beside the sidecars before it."""
    sidecars = [amount for kind, amount in inits if kind == "sidecar"]
    beside = [
        amount + sum(other for before, other in inits[:number] if before == "sidecar")
        for number, (kind, amount) in enumerate(inits)
        if kind == "init"
    ]
    started = [*inits, *(("app", amount) for amount in apps)]
    assert effective(started) == max([sum(apps) + sum(sidecars), *beside])


def test_equal_requests_are_one_object() -> None:
    """Thousands of pods of one Deployment share one request."""
    one, other = (shared_request((container("main", memory=5),), 1, ANY_GPU, None, None, ()) for _ in range(2))
    assert one is other
    assert one == PodRequest((container("main", memory=5),))
    assert one != PodRequest((container("main", memory=5),), policy="spread")


@pytest.mark.parametrize(
    ("amounts", "gpus", "names_matter"),
    [({"memory": 4}, 1, False), ({"memory": 4}, 2, True), ({"memory": 4, "cores": 10}, 1, True)],
)
def test_names_of_containers_are_essential_where_a_verdict_may_name_one(
    amounts: Mapping[str, int], gpus: int, *, names_matter: bool
) -> None:
    """A verdict may name a container for several GPUs, and for compute beside memory, but not for memory alone."""
    one, other = (
        essence(shared_request((container(name, "app", **amounts),), gpus, ANY_GPU, None, None, ()))
        for name in ("one", "other")
    )
    assert (one != other) is names_matter


def test_a_pod_refuses_gpus_by_model_and_uuid() -> None:
    """Parts of the model count, in any case; a UUID has to be whole."""
    assert Wishes(models=("a100", "h100")).refusal("GPU-0", "NVIDIA A100-SXM4-40GB") is None
    assert Wishes(models=("h100",)).refusal("GPU-0", "NVIDIA A100") == "NVIDIA A100, the pod wants h100"
    assert Wishes(models=("h100",)).refusal("0", "") == "unknown model, the pod wants h100"
    assert Wishes(not_models=("a100",)).refusal("GPU-0", "NVIDIA A100") == "NVIDIA A100, the pod does not want a100"
    assert Wishes(uuids=("GPU-0",)).refusal("GPU-0", "") is None
    assert Wishes(uuids=("GPU-0",)).refusal("GPU-01", "") == "not among the GPUs that the pod wants"
    assert Wishes(not_uuids=("GPU-0",)).refusal("GPU-0", "") == "the pod does not want this GPU"

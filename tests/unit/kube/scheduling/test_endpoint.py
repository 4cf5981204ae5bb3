"""Tests of `kube.scheduling.endpoint`: the Service leads to the pod that answers, and to no other."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped] # ships no types
import pytest

from gpushare_plugin.kube.client import Client
from gpushare_plugin.kube.identity import ObjectIdentity
from gpushare_plugin.kube.scheduling.endpoint import WRITE_AGAIN, Endpoint
from gpushare_plugin.testing.cluster import ApiServer
from gpushare_plugin.testing.cluster.server import Refusal
from tests.unit.kube.cluster import QUICK
from tests.waiting import until

SLICES = "/apis/discovery.k8s.io/v1/namespaces/gpus/endpointslices"


@dataclass
class Extender:
    """A pod that answers when it is told to, by a clock that the test moves."""

    client: Client
    pod: ObjectIdentity
    address: str
    answers: bool = False
    now: float = 0.0

    def publish(self) -> asyncio.Task[None]:
        """Start."""
        endpoint = Endpoint(self.client, "extender", self.pod, self.address, port=32766, clock=lambda: self.now)
        return asyncio.create_task(endpoint.publish(lambda: self.answers))


@pytest.fixture
async def extenders(server: ApiServer, tmp_path: Path) -> AsyncIterator[list[Extender]]:
    """Run two pods of one Service."""
    kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
    async with Client(kubeconfig, QUICK) as client:
        made = [Extender(client, ObjectIdentity("gpus", f"pod-{n}", f"uid-{n}"), f"192.0.2.{n}") for n in (1, 2)]
        running = [each.publish() for each in made]
        yield made
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def there(server: ApiServer) -> Any:
    """Return the slice, None where there is none."""
    return next(iter(server.store.find(SLICES, "extender")), None)


def addresses(server: ApiServer) -> list[str]:
    """Return where the Service leads."""
    found = there(server)
    return [] if found is None else [address for each in found["endpoints"] for address in each["addresses"]]


async def test_the_service_leads_to_the_pod_that_answers(server: ApiServer, extenders: list[Extender]) -> None:
    """The first that answers makes the slice; one that answers after it replaces it, and it is deleted with its pod."""
    first, second = extenders
    first.answers = True
    await until(lambda: addresses(server) == ["192.0.2.1"])
    first.answers, second.answers = False, True
    await until(lambda: addresses(server) == ["192.0.2.2"])
    assert [each["uid"] for each in there(server)["metadata"]["ownerReferences"]] == ["uid-2"]
    assert there(server)["metadata"]["labels"]["kubernetes.io/service-name"] == "extender"


async def test_the_slice_is_one_that_kubernetes_takes(server: ApiServer, extenders: list[Extender]) -> None:
    """It has the fields of its API, and the family of the pod's address."""
    extenders[0].answers = True
    await until(lambda: addresses(server))
    made = there(server)
    assert made["addressType"] == "IPv4"
    written = {key: value for key, value in made.items() if key != "metadata"}
    metadata = {key: made["metadata"][key] for key in ("name", "labels", "ownerReferences")}
    kubernetes_validate.validate({**written, "metadata": metadata}, kubernetes_validate.latest_version(), strict=True)


async def test_a_slice_that_was_deleted_or_changed_is_written_again(
    server: ApiServer, extenders: list[Extender]
) -> None:
    """Whoever changes it, the pod that answers writes it again before long."""
    extenders[0].answers = True
    await until(lambda: addresses(server))
    server.store.delete(SLICES, "extender")
    extenders[0].now += WRITE_AGAIN
    await until(lambda: addresses(server) == ["192.0.2.1"])


async def test_the_age_of_a_slice_counts_from_before_its_write(server: ApiServer, extenders: list[Extender]) -> None:
    """While the answer is on its way, others can have changed the slice: it is not counted as written then."""
    server.late["endpointslices"] = 0.5
    extenders[0].answers = True
    await until(lambda: addresses(server))
    extenders[0].now += WRITE_AGAIN
    server.store.delete(SLICES, "extender")
    await until(lambda: addresses(server) == ["192.0.2.1"])


async def test_a_failed_write_is_tried_again(server: ApiServer, extenders: list[Extender]) -> None:
    """An API server that refuses is asked again until it does it."""
    server.refusals.append(Refusal(500, resource="endpointslices", times=2))
    extenders[0].answers = True
    await until(lambda: addresses(server) == ["192.0.2.1"])


async def test_a_pod_that_never_answers_writes_nothing(server: ApiServer, extenders: list[Extender]) -> None:
    """Standing by leaves the Service to the others."""
    extenders[1].answers = True
    await until(lambda: addresses(server))
    assert addresses(server) == ["192.0.2.2"]
    assert {each.name for each in server.asked if each.verb == "patch"} == {"extender"}

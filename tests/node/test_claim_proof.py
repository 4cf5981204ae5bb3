"""Whether the limits of containers with claims are in effect: real processes, and made-up looks at GPUs."""

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.effect import IN_EFFECT
from gpushare_plugin.core.prepared_claim import ClaimUser, PreparedDevice
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.core.usage import Owner, Process
from gpushare_plugin.mps.exchange import ListedClient
from gpushare_plugin.node.news.news import LimitNotInEffect
from gpushare_plugin.testing.kubelet import EmbeddedKubelet
from tests.node.proven import ID, ProvenNode, proven
from tests.shown import ShownProcesses
from tests.snapshots import snapshot
from tests.unit.core.claimed import claim, device, with_claims
from tests.unit.sharing.settings import memory

LIST, PIPE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY"
GIVEN = {LIST: "0=2048M", PIPE: "/run/pipe", "NVIDIA_VISIBLE_DEVICES": "GPU"}
UID = "0a4c2a1b-1111-4222-8333-0123456789ab"
LARGER = {**GIVEN, LIST: "0=4096M"}


def by_claim() -> Snapshot:
    """Return a node with two shares under MPS by a claim of the pod `a`."""
    made = snapshot(memory(isolation="mps"), 8192, dra={})
    shares = (
        device(made, 2048, request="small", environment=GIVEN),
        device(made, 4096, request="large", environment=LARGER),
    )
    return of_pod(made, *shares)


def of_pod(made: Snapshot, *shares: PreparedDevice) -> Snapshot:
    """Return a node where a claim of the pod `a` has these shares."""
    return with_claims(made, replace(claim("mine", *shares), users=(ClaimUser("a", UID),)))


def client(node: ProvenNode, environment: dict[str, str]) -> Process:
    """Start a client of MPS in the pod of the claim."""
    owner = Owner(UID, ID)
    process = Process(node.shown.start(owner, environment), "python", 1 << 30, 0.5, owner)
    node.list_clients(ListedClient(pid=process.pid, server="17"))
    return process


@pytest.mark.parametrize("given", [GIVEN, LARGER])
async def test_a_client_with_what_its_request_was_given_is_limited(
    kubelet: EmbeddedKubelet, shown: ShownProcesses, given: dict[str, str]
) -> None:
    """The variables are those of the CDI specification, of which the kubelet's checkpoint knows nothing."""
    async with proven(kubelet, shown, by_claim()) as node:
        assert await node.look(client(node, given)) == IN_EFFECT


async def test_a_client_that_raises_the_limit_of_its_claim_is_found(
    kubelet: EmbeddedKubelet, shown: ShownProcesses
) -> None:
    """A program that sets another limit than the requests of the claim have is not limited; its pod gets one Event."""
    async with proven(kubelet, shown, by_claim()) as node:
        process = client(node, {**GIVEN, LIST: "0=80G"})
        effect = await node.look(process)
        (told,) = (each.usage for each in node.heard if isinstance(each, LimitNotInEffect))
        assert (told.label, told.uid, told.resource) == ("default/a", UID, "claim:mine")
        await node.look(process)
        assert node.heard == []
        assert effect is not None
        assert effect.state == "not in effect"
        assert f"has another {LIST} than its container was given" in (effect.reason or "")


async def test_a_claim_has_its_own_mps_namespace(kubelet: EmbeddedKubelet, shown: ShownProcesses) -> None:
    """A client that uses the namespace of others is found, as for units."""
    made = snapshot(memory(isolation="mps"), 8192, dra={}, flags={"mpsProtocol": 3})
    prepared = replace(device(made, 2048, environment={PIPE: "/run/pipe"}), namespace="c_own")
    async with proven(kubelet, shown, of_pod(made, prepared)) as node:
        process = client(node, {PIPE: "/run/pipe"})
        for name, expected in (("c_own", "in effect"), ("c_other", "not in effect")):
            node.list_clients(ListedClient(pid=process.pid, server="gpushare", namespace=name, memory_limit_mib=2048))
            effect = await node.look(process)
            assert effect is not None
            assert effect.state == expected, effect

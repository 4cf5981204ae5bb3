"""Tests of `service` and `registration`: what is answered, and what is refused before anything is asked."""

import asyncio
from pathlib import Path

import grpc
import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.core.prepared_claim import ClaimId
from gpushare_plugin.kubelet.api import dra_v1_pb2 as api
from gpushare_plugin.kubelet.api.dra_v1_pb2_grpc import DRAPluginStub
from gpushare_plugin.kubelet.api.pluginregistration_pb2 import InfoRequest
from gpushare_plugin.kubelet.api.pluginregistration_pb2_grpc import RegistrationStub
from gpushare_plugin.kubelet.dra_plugin.claim_service import DeviceHealth
from gpushare_plugin.kubelet.dra_plugin.service import MOST_CLAIMS
from gpushare_plugin.kubelet.serving.own_socket import MOST_CONNECTIONS
from tests.unit.kubelet.dra_plugin.serving import HEALTHY, Claims, PluginNode, cdi_name, connected, plugin_node
from tests.unit.testing.dra.driver import DRIVER
from tests.unit.testing.dra.node import NODE
from tests.waiting import until

UID = "0c7c4b3e-7d0a-4f3e-8a5b-3a1f7f8f9d10"


def a_claim(uid: str = UID, name: str = "gpu", namespace: str = "default") -> api.Claim:
    """Return a claim as the kubelet names it."""
    return api.Claim(namespace=namespace, name=name, uid=uid)


async def prepared(its: PluginNode, *claims: api.Claim) -> api.NodePrepareResourcesResponse:
    """Ask the plugin to prepare claims."""
    async with connected(its.endpoint) as channel:
        return await DRAPluginStub(channel).NodePrepareResources(api.NodePrepareResourcesRequest(claims=claims))


async def test_all_that_the_kubelet_needs_of_a_device_is_in_the_answer(short_path: Path) -> None:
    """The request, pool, device, CDI names and the ID of the share; several claims are asked for at once."""
    claims = Claims()
    async with plugin_node(short_path) as its, its.plugin(claims):
        answer = await prepared(its, a_claim("a"), a_claim("b", "other"))
        assert answer.claims["a"].devices[:] == [
            api.Device(
                request_names=["gpu"], pool_name=NODE, device_name="gpu-0", cdi_device_ids=[cdi_name("a")], share_id="a"
            )
        ]
        assert claims.prepared == [[ClaimId("default", "gpu", "a"), ClaimId("default", "other", "b")]]


@pytest.mark.parametrize(
    "claim",
    [
        a_claim("../../etc"),
        a_claim(""),
        a_claim("x" * 65),
        a_claim(name="../secrets/x"),
        a_claim(name=""),
        a_claim(name="a" * 254),
        a_claim(namespace="a/b"),
    ],
    ids=lambda claim: f"{claim.namespace[:9]}-{claim.name[:9]}-{claim.uid[:9]}",
)
async def test_a_claim_that_kubernetes_cannot_have_is_refused(short_path: Path, claim: api.Claim) -> None:
    """Names become parts of URLs and of paths of files; the other claims of the pod are asked for."""
    claims = Claims()
    async with plugin_node(short_path) as its, its.plugin(claims):
        answer = await prepared(its, claim, a_claim("sound"))
        assert "a claim of Kubernetes cannot have the" in answer.claims[claim.uid].error
        assert answer.claims["sound"].error == ""
        assert claims.prepared == [[ClaimId("default", "gpu", "sound")]]


async def test_more_claims_than_a_pod_has_are_refused(short_path: Path) -> None:
    """Nothing is asked for; each claim of the call has the reason, to give back as well."""
    claims = Claims()
    async with plugin_node(short_path) as its, its.plugin(claims), connected(its.endpoint) as channel:
        many = [a_claim(str(number)) for number in range(MOST_CLAIMS + 1)]
        answer = await prepared(its, *many)
        assert {each.error[:29] for each in answer.claims.values()} == {"257 claims in one call found,"}
        assert len(answer.claims) == len(many)
        back = await DRAPluginStub(channel).NodeUnprepareResources(api.NodeUnprepareResourcesRequest(claims=many))
        assert {each.error[:29] for each in back.claims.values()} == {"257 claims in one call found,"}
        assert (claims.prepared, claims.unprepared) == ([], [])
        await prepared(its, *many[1:])
        assert [len(each) for each in claims.prepared] == [MOST_CLAIMS]


async def test_every_claim_is_in_the_answer(short_path: Path) -> None:
    """Also a claim about which nothing is known, and all claims of a call that is refused as a whole."""

    async def refuse() -> None:
        raise GpushareError("no API server")

    claims = Claims(answers={UID: ()})
    async with plugin_node(short_path) as its, its.plugin(claims):
        assert (await prepared(its, a_claim())).claims[UID].error == ""
        claims.answers = {UID: ""}
        assert "defect" in (await prepared(its, a_claim())).claims[UID].error
        claims.during = refuse
        answer = await prepared(its, a_claim("a"), a_claim("b"))
        assert {uid: each.error for uid, each in answer.claims.items()} == dict.fromkeys("ab", "no API server")


async def test_an_error_is_one_line_of_a_bounded_length(short_path: Path) -> None:
    """Whatever is in it, as names of pods and answers of servers may be."""
    async with plugin_node(short_path) as its, its.plugin(Claims(answers={UID: "no\nroom" + "x" * 10_000})):
        error = (await prepared(its, a_claim())).claims[UID].error
        assert error.startswith("no\\nroomx")
        assert len(error) == 4096


async def test_a_claim_that_is_not_given_back_shows_why(short_path: Path) -> None:
    """Any other claim of the call is given back."""
    async with plugin_node(short_path) as its, its.plugin(Claims(errors={UID: "disk full"})):
        async with connected(its.endpoint) as channel:
            request = api.NodeUnprepareResourcesRequest(claims=[a_claim(), a_claim("b")])
            answer = await DRAPluginStub(channel).NodeUnprepareResources(request)
        assert {uid: each.error for uid, each in answer.claims.items()} == {UID: "disk full", "b": ""}


async def test_who_serves_is_answered_while_a_claim_takes_its_time(short_path: Path) -> None:
    """The kubelet waits for that answer for a second only."""
    asked = asyncio.Event()

    async def wait_for_ever() -> None:
        asked.set()
        await asyncio.Event().wait()

    async with plugin_node(short_path) as its, its.plugin(Claims(during=wait_for_ever)) as plugin:
        call = asyncio.create_task(prepared(its, a_claim()))
        await asked.wait()
        async with connected(its.registration) as channel:
            info = await RegistrationStub(channel).GetInfo(InfoRequest())
        assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(its.endpoint))
        assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
        call.cancel()
        await until(lambda: ("NodePrepareResources", "CANCELLED") in plugin.calls.durations)


async def test_a_request_too_large_is_refused_unread(short_path: Path) -> None:
    """More than a megabyte of claims is no pod."""
    claims = Claims()
    async with plugin_node(short_path) as its, its.plugin(claims):
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await prepared(its, *(a_claim(str(each), "n" * 250) for each in range(4000)))
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert claims.prepared == []


async def test_so_many_connections_and_no_more(short_path: Path) -> None:
    """One more is closed, and the others are served on."""
    async with plugin_node(short_path) as its, its.plugin():
        channels = [
            grpc.aio.insecure_channel(f"unix:{its.endpoint}", options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(MOST_CONNECTIONS + 1)
        ]
        for channel in channels[:-1]:
            await channel.channel_ready()
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await DRAPluginStub(channels[-1]).NodePrepareResources(api.NodePrepareResourcesRequest())
        assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
        await DRAPluginStub(channels[0]).NodePrepareResources(api.NodePrepareResourcesRequest())
        await asyncio.gather(*(channel.close() for channel in channels))


async def test_health_reaches_pods_and_does_not_run_out(short_path: Path) -> None:
    """A change comes at once; without a change the same is sent again, before the kubelet's 30 s are over."""
    claims = Claims()
    async with plugin_node(short_path) as its, its.plugin(claims, health_seconds=0.01) as plugin:
        await its.until_registered(plugin)
        pod = its.node.pod("gpu")
        await its.node.kubelet.admit(pod)

        async def until_health(expected: str) -> None:
            shown = {"claim:gpu": {cdi_name(its.node.uid("gpu")): expected}}
            await its.node.kubelet.wait_for(lambda kubelet: kubelet.health(pod, "main") == shown)

        await until_health("Healthy")
        for word in ("Unhealthy", "Unknown", "Healthy"):
            claims.health.publish((DeviceHealth(NODE, "gpu-0", word, "XID 79"),))
            await until_health(word)
        for _ in range(3):
            await its.node.clock.skip(31)
            await until_health("Healthy")


async def test_health_of_one_instance_outlives_the_end_of_another(short_path: Path) -> None:
    """The kubelet then forgets all health of the DRA driver, until the next report."""
    claims = Claims(health=type(Claims().health)((HEALTHY,)))
    async with plugin_node(short_path) as its, its.plugin(claims, health_seconds=0.01) as plugin:
        await its.until_registered(plugin)
        pod = its.node.pod("gpu")
        async with its.plugin(claims) as old:
            await its.until_registered(old)
            await its.node.kubelet.admit(pod)
        shown = {"claim:gpu": {cdi_name(its.node.uid("gpu")): "Healthy"}}
        await its.node.kubelet.wait_for(lambda kubelet: kubelet.health(pod, "main") == shown)

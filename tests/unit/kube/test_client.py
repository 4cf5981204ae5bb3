"""Tests of `gpushare_plugin.kube.client`, and of following one object, against a misbehaving API server."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.kube.client import NODES, Client, ClusterError, Object, Timing, decoded
from gpushare_plugin.kube.collection import follow_object
from gpushare_plugin.testing.cluster import ApiServer, Permission
from gpushare_plugin.testing.cluster.server import Refusal
from tests.skipping import SkippingLoop
from tests.unit.kube.certificates import Authority
from tests.unit.kube.cluster import NODE, QUICK, a_node, label
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with a node."""
    async with ApiServer() as running:
        a_node(running)
        yield running


def labels(found: Object | None) -> Any:
    """Return the labels of a node that is there, without the kubelet's."""
    assert found is not None
    return {key: value for key, value in found["metadata"]["labels"].items() if key != "kubernetes.io/hostname"}


async def test_a_followed_object_comes_first_and_then_each_change(server: ApiServer, client: Client) -> None:
    """Changes include the end of the object and its return; other objects do not come."""
    following = follow_object(client, NODES, NODE, "nothing")
    assert labels(await anext(following)) == {}
    server.store.update(NODES, "another", {("metadata", "labels", "team"): "b"})
    label(server, "team", "a")
    assert labels(await anext(following)) == {"team": "a"}
    server.store.delete(NODES, NODE)
    assert await anext(following) is None
    a_node(server)
    assert labels(await anext(following)) == {}
    await following.aclose()


@pytest.mark.usefixtures("server")
async def test_an_object_that_is_not_there_is_none(client: Client) -> None:
    """An object that does not exist is None at once."""
    following = follow_object(client, NODES, "nobody", "nothing")
    assert await anext(following) is None
    await following.aclose()


@pytest.mark.parametrize("status", [403, 409, 429, 500, 503])
@pytest.mark.parametrize("verb", ["list", "watch"])
async def test_a_failed_request_is_retried(server: ApiServer, client: Client, verb: str, status: int) -> None:
    """A failed request is retried, and what changed meanwhile is found."""
    server.refusals.append(Refusal(status, verb, times=2))
    following = follow_object(client, NODES, NODE, "nothing")
    assert labels(await anext(following)) == {}
    label(server, "team", "a")
    assert labels(await anext(following)) == {"team": "a"}
    label(server, "team", "b")
    while labels(await anext(following)) != {"team": "b"}:
        label(server, "team", "b")
    assert [each.status for each in server.asked if each.verb == verb][:2] == [status, status]
    await following.aclose()


async def test_errors_are_counted_by_kind(server: ApiServer, tmp_path: Path) -> None:
    """Each failed request is counted once, as what metrics call it; one that succeeds is not counted."""
    kinds = {403: "forbidden", 409: "conflict", 429: "throttled", 422: "rejected", 503: "server"}
    server.refusals += [Refusal(status, "list", times=1) for status in kinds]
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), Timing(request=0.5)) as client:
        for _ in kinds:
            with pytest.raises(ClusterError):
                await client.list(NODES)
        await client.list(NODES)
        server.silent = True
        with pytest.raises(ClusterError):
            await client.list(NODES)
        assert client.errors == dict.fromkeys((*kinds.values(), "unanswered"), 1)


async def test_retry_after_is_followed(server: ApiServer, client: Client) -> None:
    """The error has the seconds that the server requests us to wait."""
    server.refusals.append(Refusal(429, times=1, headers={"Retry-After": "1"}))
    with pytest.raises(ClusterError) as refused:
        await client.list(NODES)
    assert (refused.value.status, refused.value.retry_after) == (429, 1.0)
    assert "GET /api/v1/nodes: 429: refused with 429" in str(refused.value)


@pytest.mark.parametrize("delay", ["-1", "nan", "inf", "1e3", "\u0663", "soon"])
async def test_a_retry_after_that_is_no_number_of_seconds_is_none(
    server: ApiServer, client: Client, delay: str
) -> None:
    """What is no time to wait neither stops a loop nor has it try again at once."""
    server.refusals.append(Refusal(429, times=1, headers={"Retry-After": delay}))
    with pytest.raises(ClusterError) as refused:
        await client.list(NODES)
    assert refused.value.retry_after is None


@pytest.mark.parametrize("answer", [b"", b"[]", b"7", b"[" * 100_000, b"\xff"])
def test_an_answer_of_another_type_is_an_error_that_names_the_request(answer: bytes) -> None:
    """Whoever asked gets the error that is waited out, whatever was sent."""
    kind: type[dict[str, Any]] = dict
    with pytest.raises(ClusterError, match="the answer to PATCH /api/v1/nodes/a is not valid"):
        decoded(answer, kind, f"{NODES}/a", "PATCH")


async def test_a_version_too_old_is_listed_again(server: ApiServer, client: Client) -> None:
    """When the server has forgotten the changes since, the object is read again, and nothing is lost."""
    following = follow_object(client, NODES, NODE, "nothing")
    assert labels(await anext(following)) == {}
    label(server, "team", "a")
    server.store.forget()
    assert labels(await anext(following)) == {"team": "a"}
    label(server, "team", "b")
    assert labels(await anext(following)) == {"team": "b"}
    assert [each.verb for each in server.asked].count("list") == 2
    await following.aclose()


async def test_a_watch_is_resumed(server: ApiServer, tmp_path: Path) -> None:
    """When the server ends a watch in time, it goes on from the last version, and nothing is read twice."""
    timing = Timing(request=20.0, watch=1.0, first_wait=0.01, longest_wait=0.05)
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), timing) as client:
        following = follow_object(client, NODES, NODE, "nothing")
        assert labels(await anext(following)) == {}
        label(server, "team", "a")
        assert labels(await anext(following)) == {"team": "a"}
        resumed = asyncio.ensure_future(anext(following))
        await until(lambda: [each.verb for each in server.asked].count("watch") == 2)
        label(server, "team", "b")
        assert labels(await resumed) == {"team": "b"}
        assert [each.verb for each in server.asked].count("list") == 1
        await following.aclose()


async def test_a_dead_connection_is_noticed(server: ApiServer, tmp_path: Path) -> None:
    """A watch that lasts longer than it should is started again."""
    server.watches.endless = True
    timing = Timing(request=1.0, watch=1.0, first_wait=0.01, longest_wait=0.05)
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), timing) as client:
        following = follow_object(client, NODES, NODE, "nothing")
        assert labels(await anext(following)) == {}
        waiting = asyncio.ensure_future(anext(following))
        await until(lambda: [each.verb for each in server.asked].count("watch") >= 2)
        label(server, "team", "a")
        assert labels(await waiting) == {"team": "a"}
        await following.aclose()


async def test_a_server_that_is_away_is_waited_for(server: ApiServer, client: Client) -> None:
    """A server that goes and comes back, with other objects, is followed on."""
    following = follow_object(client, NODES, NODE, "nothing")
    assert labels(await anext(following)) == {}
    await server.stop()
    label(server, "team", "a")
    with pytest.raises(ClusterError, match="cannot be reached"):
        await client.list(NODES)
    await server.start()
    assert labels(await anext(following)) == {"team": "a"}
    await following.aclose()


async def test_a_server_that_does_not_answer_is_an_error(server: ApiServer, tmp_path: Path) -> None:
    """A request ends at its timeout, and the error names the request."""
    server.silent = True
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), Timing(request=0.2)) as client:
        with pytest.raises(ClusterError, match=r"GET /api/v1/nodes: no answer within 0\.2 s"):
            await client.list(NODES)


async def on_its_way(server: ApiServer, client: Client) -> asyncio.Task[object]:
    """Return a request that the server has, and whose time has not ended: on a busy machine not always the first."""
    while True:
        before = len(server.begun)
        request: asyncio.Task[object] = asyncio.create_task(client.list(NODES))
        while len(server.begun) == before and not request.done():  # noqa: ASYNC110 - the server sets no event
            await asyncio.sleep(0)
        if not request.done():
            return request


async def test_a_request_that_is_cancelled_as_its_time_ends_is_cancelled(server: ApiServer, tmp_path: Path) -> None:
    """Also in the same turn of the event loop, as after a time in which the process did not run: tasks have to end."""
    server.silent = True
    limit = 0.3
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), Timing(request=limit)) as client:
        request = await on_its_way(server, client)
        # What is due at the end of the block comes in the order of time: the limit, then this.
        asyncio.get_running_loop().call_later(limit, request.cancel)
        time.sleep(limit + 0.1)  # noqa: ASYNC251 - the process does not run
        with pytest.raises(asyncio.CancelledError):
            await request


async def test_a_forbidden_request_is_an_error_that_names_the_missing_right(tmp_path: Path) -> None:
    """The server's own message says which permission is missing."""
    async with ApiServer([Permission("list", "nodes")]) as server:
        a_node(server)
        async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
            await client.list(NODES)
            with pytest.raises(ClusterError, match='403: cannot patch resource "nodes"'):
                await client.apply(f"{NODES}/{NODE}", "gpushare", {"metadata": {"name": NODE}})


async def test_authorities_that_change_are_trusted(tmp_path: Path) -> None:
    """The bare authority of a managed cluster is enough, and a new one is trusted without a restart."""
    server, authorities = ApiServer(), tmp_path / "authorities"
    Authority("old").write(authorities)
    new = Authority("new")
    server.tls = new.server(tmp_path)
    async with server, Client(server.kubeconfig(tmp_path / "kubeconfig", authorities), QUICK) as client:
        with pytest.raises(ClusterError, match="certificate verify failed"):
            await client.list(NODES)
        authorities.unlink()
        with pytest.raises(ClusterError, match="certificate verify failed"):
            await client.list(NODES)
        new.write(authorities)
        with pytest.raises(ClusterError, match="certificate verify failed"):
            await client.list(NODES)
        assert (await client.list(NODES))[0] == []


@pytest.mark.parametrize("content", [None, "", "{", "clusters: 1\n"])
async def test_a_kubeconfig_that_cannot_be_used_is_an_error(tmp_path: Path, content: str | None) -> None:
    """A file that is missing or nonsense is named, whatever is wrong with it."""
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    async with Client(file, QUICK) as client:
        with pytest.raises(ClusterError, match=r"cannot find an API server: .*kubeconfig is not usable"):
            await client.list(NODES)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "there is no such file"), ("", "the file is empty")],
)
async def test_a_kubeconfig_that_is_not_there_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str | None, problem: str
) -> None:
    """Nothing is said of keys in a file that does not exist, and the library prints nothing beside; also of a list."""
    file = tmp_path / "kubeconfig"
    if content is not None:
        file.write_text(content)
    for named in (file, Path(f"{file}:{file}2")):
        async with Client(named, QUICK) as client:
            with pytest.raises(ClusterError, match=f"kubeconfig2? is not usable: {problem}$"):
                await client.list(NODES)
    assert capfd.readouterr().err == ""


async def test_a_client_outside_of_a_cluster_finds_no_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kubeconfig and outside of a pod, nothing is guessed."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    async with Client(None, QUICK) as client:
        with pytest.raises(ClusterError, match="cannot find an API server: the pod's service account is not usable"):
            await client.list(NODES)


@pytest.mark.parametrize("status", [None, 500, 503])
def test_requests_are_tried_again_within_seconds_after_any_outage(status: int | None) -> None:
    """An outage counts for its own attempts alone: what a server forbids that has just started is tried soon, too."""
    outage, forbidden = ClusterError("unanswered", status), ClusterError("forbidden", 403)

    async def waits() -> list[float]:
        clock, client = asyncio.get_running_loop().time, Client()
        backoff, found = client.timing.backoff(), []
        for error in [outage] * 40 + [forbidden] * 10:
            began = clock()
            await client.wait_out(error, backoff, NODES, "nothing")
            found.append(clock() - began)
        return found

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        found = runner.run(waits())
    assert max(found[:40]) <= 10.0
    assert found[40] <= 1.0
    assert found[-1] >= 30.0

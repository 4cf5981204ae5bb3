"""Who may see the pages in a cluster: users of the API server, each with the namespaces whose pods they may list."""

import asyncio
import base64
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from gpushare_plugin.kube.client import Client
from gpushare_plugin.observe.metrics.web import WebCounts
from gpushare_plugin.testing.clock import MovedClock
from gpushare_plugin.testing.cluster import ApiServer, granted
from gpushare_plugin.testing.cluster.people import Person
from gpushare_plugin.testing.cluster.server import Refusal
from gpushare_plugin.web.reviewed_access import (
    LASTING,
    MOST_NAMESPACES,
    MOST_NEWCOMERS,
    MOST_VISITORS,
    PAGES,
    ReviewedAccess,
)
from gpushare_plugin.web.viewer import Viewer
from tests.chart.rendering import objects
from tests.unit.kube.cluster import QUICK
from tests.unit.web.visited import a_cluster, asked, in_namespace, visited
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server with pods of two namespaces, and users."""
    async with ApiServer() as running:
        a_cluster(running)
        yield running


@pytest.fixture
async def address(server: ApiServer, tmp_path: Path) -> AsyncIterator[str]:
    """Show the cluster, and return the address of the pages."""
    async with visited(server, tmp_path) as found:
        yield found


def basic(text: str) -> dict[str, str]:
    """Return the header of HTTP Basic."""
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def of(token: str) -> web.BaseRequest:
    """Return a request with a token."""
    return make_mocked_request("GET", "/", headers={"Authorization": f"Bearer {token}"})


def status_of(answer: object) -> int:
    """Return the status of a refusal."""
    assert isinstance(answer, web.Response)
    return answer.status


def reviews(server: ApiServer, resource: str) -> int:
    """Return how many reviews were asked for."""
    return sum(each.resource == resource for each in server.begun)


async def test_a_user_sees_the_pods_of_namespaces_that_the_user_may_list(address: str) -> None:
    """All others have no name; a user who may list all pods sees all names."""
    status, page = await asked(f"{address}/nodes/gpu-1", "token-of-alice")
    assert (status, "red-pod" in page, "blue" in page) == (200, True, False)
    status, page = await asked(f"{address}/nodes/gpu-1", "token-of-olga")
    assert (status, "red-pod" in page, "blue-pod" in page) == (200, True, True)


@pytest.mark.parametrize("name", ["", "anybody", "olga"])
async def test_a_token_is_the_password_of_http_basic(address: str, name: str) -> None:
    """Browsers ask people for a password; who the user is, the token alone says."""
    status, page = await asked(f"{address}/nodes/gpu-1", headers=basic(f"{name}:token-of-alice"))
    assert (status, "red-pod" in page, "blue" in page) == (200, True, False)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer token-of-alice token-of-alice"},
        {"Authorization": "Basic ::"},
        {"Authorization": "Basic token-of-alice"},
        {"Authorization": "Digest token-of-alice"},
        {"X-Remote-User": "olga", "X-Remote-Group": "system:masters"},
        {"Cookie": "gpushare-1=token-of-alice"},
        basic("token-of-alice"),
        basic("token-of-alice:wrong"),
    ],
)
async def test_nobody_is_shown_anything_without_a_token_of_the_cluster(address: str, headers: dict[str, str]) -> None:
    """The answer is 401 at every path, and names nothing of the cluster."""
    for path in ("/", "/nodes/gpu-1", "/updates", "/static/style.css", "/?token=token-of-alice", "/nowhere"):
        status, text = await asked(address + path, headers=headers)
        assert (status, "gpu-1" in text, "token-of" in text) == (401, False, False), path


async def test_a_user_without_the_right_is_told_which(address: str) -> None:
    """To list all pods is not enough."""
    status, text = await asked(address, "token-of-mallory")
    assert status == 403
    assert text == (
        "mallory may not see these pages: it takes the right to get the non-resource URL /gpushare, which a "
        "ClusterRole of the chart has\n"
    )


async def test_the_api_server_is_asked_once_for_many_pages(server: ApiServer, address: str) -> None:
    """One review of the token, and one for each right: the path, all pods, and each of two namespaces."""
    for _ in range(5):
        assert (await asked(address, "token-of-alice"))[0] == 200
    assert (reviews(server, "tokenreviews"), reviews(server, "subjectaccessreviews")) == (1, 4)


async def test_a_namespace_that_appears_is_asked_about(server: ApiServer, address: str) -> None:
    """A user sees pods of a new namespace at the next page, and nothing else is asked again."""
    server.people.tokens["token-of-bob"] = Person("bob", frozenset({"green"}))
    assert "green" not in (await asked(f"{address}/nodes/gpu-1", "token-of-bob"))[1]
    before = reviews(server, "subjectaccessreviews")
    in_namespace(server, "green", "green-pod", "GPU-gpu-1-0")

    async def shown() -> bool:
        return "green-pod" in (await asked(f"{address}/nodes/gpu-1", "token-of-bob"))[1]

    await until(shown)
    assert reviews(server, "subjectaccessreviews") == before + 1


async def test_answers_count_for_a_minute(server: ApiServer, tmp_path: Path) -> None:
    """Then a right that was taken is gone, and so is a user whose token ended; until then nothing is asked."""
    server.people.tokens["token-of-bob"] = bob = Person("bob", frozenset({"red", "blue"}))
    clock = MovedClock()
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        access = ReviewedAccess(client, lambda: frozenset({"red", "blue"}), WebCounts(), clock=clock)
        assert await access.viewer(of("token-of-bob")) == Viewer("bob", frozenset({"red", "blue"}))
        bob.lists_pods = frozenset({"red"})
        await clock.skip(LASTING)
        assert await access.viewer(of("token-of-bob")) == Viewer("bob", frozenset({"red", "blue"}))
        await clock.skip(1)
        assert await access.viewer(of("token-of-bob")) == Viewer("bob", frozenset({"red"}))
        del server.people.tokens["token-of-bob"]
        await clock.skip(LASTING + 1)
        assert status_of(await access.viewer(of("token-of-bob"))) == 401


async def test_what_is_kept_of_users_is_bounded(server: ApiServer, tmp_path: Path) -> None:
    """Of more users than are kept, the one seen longest ago is asked about again; of namespaces, 256 count."""
    many = frozenset(f"team-{number:04}" for number in range(MOST_NAMESPACES + 50))
    for number in range(MOST_VISITORS + 1):
        server.people.tokens[f"token-{number}"] = Person(f"user-{number}", None)
    server.people.tokens["token-of-bob"] = Person("bob", many)
    async with Client(server.kubeconfig(tmp_path / "kubeconfig"), QUICK) as client:
        access = ReviewedAccess(client, lambda: many, WebCounts())
        found = await access.viewer(of("token-of-bob"))
        assert isinstance(found, Viewer)
        assert found.namespaces == frozenset(sorted(many)[:MOST_NAMESPACES])
        for number in range(MOST_VISITORS + 1):
            await access.viewer(of(f"token-{number}"))
        before = reviews(server, "tokenreviews")
        await access.viewer(of(f"token-{MOST_VISITORS}"))
        assert reviews(server, "tokenreviews") == before
        await access.viewer(of("token-of-bob"))
        assert reviews(server, "tokenreviews") == before + 1


async def test_nobody_is_let_in_while_the_api_server_does_not_answer(
    server: ApiServer, address: str, log: list[MutableMapping[str, Any]]
) -> None:
    """503, and one line of the log for all of it, without the token."""
    server.refusals.append(Refusal(500, resource="tokenreviews"))
    for _ in range(3):
        assert (await asked(address, "token-of-alice"))[0] == 503
    (line,) = [each for each in log if each["event"] == "viewer_review_failed"]
    assert "token-of" not in str(line)
    server.refusals.clear()
    assert (await asked(address, "token-of-alice"))[0] == 200


async def test_a_flood_of_wrong_tokens_does_not_keep_users_out(server: ApiServer, address: str) -> None:
    """While as many strangers are reviewed as may be, one more is sent away, and a user who is known is served."""
    assert (await asked(address, "token-of-alice"))[0] == 200
    server.delayed["tokenreviews"] = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        strangers = [group.create_task(asked(address, f"wrong-{number}")) for number in range(MOST_NEWCOMERS)]
        await until(lambda: reviews(server, "tokenreviews") >= 2)

        async def turned_away() -> bool:
            return (await asked(address, "one-more"))[0] == 503

        await until(turned_away)
        assert (await asked(address, "token-of-alice"))[0] == 200
        server.delayed.pop("tokenreviews").set()
    assert {task.result()[0] for task in strangers} == {401}


async def test_the_rights_of_the_chart_suffice_and_are_all_used(server: ApiServer, tmp_path: Path) -> None:
    """The service account of the pages has the rights that it uses, and no other."""
    made = objects({"web": {"enabled": True, "insecureHttp": True}})
    server.permissions = rights = granted(made, "gpushare-web")
    async with visited(server, tmp_path) as address:
        assert (await asked(address, "token-of-alice"))[0] == 200
        await until(lambda: server.used == rights, lambda: rights - server.used)
    (role,) = [each for each in made if each["metadata"]["name"] == "gpushare-web-viewer"]
    assert role["rules"] == [{"nonResourceURLs": [PAGES], "verbs": ["get"]}]

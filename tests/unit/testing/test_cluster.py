"""Tests of `gpushare_plugin.testing.cluster`: it does what the API server's documentation says of it."""

import asyncio
import gc
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.testing.cluster import ApiServer, Permission, Store, granted
from gpushare_plugin.testing.cluster.store.errors import ConflictError, InvalidError, NotFoundError
from tests.waiting import PATIENCE

NODES, NAME = "/api/v1/nodes", "node"


@pytest.fixture
def store() -> Store:
    """Return a store with one node, which has one label of somebody's."""
    made = Store()
    made.update(NODES, NAME, {("metadata", "labels", "team"): "a"}, "kubectl")
    return made


def apply(
    store: Store, manager: str, labels: dict[str, str], *, force: bool = False, **identity: str
) -> dict[str, str]:
    """Apply labels, and return those that are there afterwards."""
    body: dict[str, Any] = {"metadata": {"name": NAME, "labels": labels, **identity}}
    found = store.apply(NODES, "", manager, body, force=force)
    return dict(found["metadata"]["labels"])


def test_fields_that_a_manager_applies_no_more_are_removed(store: Store) -> None:
    """Fields of one manager go with its next word; what another manager says too stays."""
    assert apply(store, "one", {"x": "1", "y": "2"}) == {"team": "a", "x": "1", "y": "2"}
    assert apply(store, "other", {"y": "2"}) == {"team": "a", "x": "1", "y": "2"}
    assert apply(store, "one", {}) == {"team": "a", "y": "2"}


def test_another_value_for_a_field_of_another_manager_is_a_conflict(store: Store) -> None:
    """Only with force is the value changed, and the field is the other manager's no more."""
    assert apply(store, "one", {"team": "a"}) == {"team": "a"}
    with pytest.raises(ConflictError, match=r"\.metadata\.labels\.team"):
        apply(store, "one", {"team": "b"})
    assert apply(store, "one", {"team": "b"}, force=True) == {"team": "b"}
    assert apply(store, "one", {}) == {}


def test_an_update_takes_fields_over(store: Store) -> None:
    """Whoever patches a field manages it from then on."""
    apply(store, "one", {"x": "1"})
    store.update(NODES, NAME, {("metadata", "labels", "x"): "2"}, "kubectl")
    assert apply(store, "one", {}) == {"team": "a", "x": "2"}


def test_an_apply_that_changes_nothing_makes_no_version(store: Store) -> None:
    """There is no event either."""
    apply(store, "one", {"x": "1"})
    before = store.version.value
    apply(store, "one", {"x": "1"})
    assert store.version.value == before


def test_an_apply_makes_no_object(store: Store) -> None:
    """No object is one of no right to make it, a conflict for a UID, and none that has a status."""
    store.delete(NODES, NAME)
    with pytest.raises(KeyError):
        apply(store, "one", {})
    with pytest.raises(ConflictError, match="uid mismatch"):
        apply(store, "one", {}, uid="another")
    with pytest.raises(NotFoundError):
        store.apply(NODES, "status", "one", {"metadata": {"name": NAME, "uid": "another"}}, force=True)


def test_an_apply_changes_no_uid(store: Store) -> None:
    """A UID that is not the object's is invalid, as a change of a field that never changes; nothing is written."""
    with pytest.raises(InvalidError, match=r"metadata\.uid: Invalid value.*field is immutable"):
        apply(store, "one", {"x": "1"}, uid="another")
    assert apply(store, "one", {}) == {"team": "a"}


def test_rights_are_those_of_the_bound_roles() -> None:
    """A role counts where it is bound, for the account it is bound to; a name limits also lists and watches."""
    role = {
        "kind": "Role",
        "metadata": {"name": "r"},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["watch"], "resourceNames": ["one"]}],
    }
    binding = {
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "kube-system"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "account"}],
    }
    (allowed,) = granted([role, binding, {"kind": "DaemonSet", "metadata": {"name": "d"}}], "account")
    assert allowed == Permission("watch", "configmaps", "kube-system", "one")
    assert granted([role, binding], "another") == frozenset()
    assert allowed.allows("watch", "configmaps", "kube-system", "one")
    for request in [
        ("list", "configmaps", "kube-system", "one"),
        ("watch", "secrets", "kube-system", "one"),
        ("watch", "configmaps", "default", "one"),
        ("watch", "configmaps", "kube-system", None),
    ]:
        assert not allowed.allows(*request)


def test_rights_that_nobody_should_have_are_refused() -> None:
    """A star in a rule cannot be checked for use, so there must be none."""
    role = {
        "kind": "ClusterRole",
        "metadata": {"name": "r"},
        "rules": [{"apiGroups": [""], "resources": ["*"], "verbs": ["get"]}],
    }
    binding = {
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "account"}],
    }
    with pytest.raises(ValueError, match="expected API groups, resources and verbs by name"):
        granted([role, binding], "account")


def test_rights_are_of_an_api_group() -> None:
    """The same resource of another group is another resource."""
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]}
    role = {"kind": "Role", "metadata": {"name": "r"}, "rules": [rule]}
    binding = {
        "kind": "RoleBinding",
        "metadata": {"name": "b", "namespace": "gpushare"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "account"}],
    }
    (allowed,) = granted([role, binding], "account")
    assert allowed.allows("get", "leases", "gpushare", "one", "coordination.k8s.io")
    assert not allowed.allows("get", "leases", "gpushare", "one")


def annotate(store: Store, **annotations: str) -> dict[str, str]:
    """Apply annotations, and return those that are there afterwards."""
    body: dict[str, Any] = {"kind": "Node", "metadata": {"name": NAME, "annotations": annotations}}
    return dict(store.apply(NODES, "", "one", body, force=True)["metadata"]["annotations"])


def test_annotations_of_all_have_256_kib_together(store: Store) -> None:
    """Bytes of keys and values of everybody count; one more is refused in the server's words, and changes nothing."""
    store.update(NODES, NAME, {("metadata", "annotations", "theirs"): "é" * 1000})
    room = 256 * 1024 - len("theirs") - 2000 - len("ours")
    assert len(annotate(store, ours="x" * room)["ours"]) == room
    refusal = 'Node "node" is invalid: metadata.annotations: Too long: may not be more than 262144 bytes'
    before = store.version.value
    with pytest.raises(InvalidError, match=refusal):
        annotate(store, ours="x" * (room + 1))
    (node,) = store.find(NODES, NAME)
    assert (len(node["metadata"]["annotations"]["ours"]), store.version.value) == (room, before)
    assert "ours" not in annotate(store)


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_a_request_has_three_mib(tmp_path: Path) -> None:
    """A larger body is refused in the server's words, before anybody looks into it."""
    body = {"kind": "Node", "metadata": {"name": NAME, "annotations": {"ours": "x" * 3 * 1024 * 1024}}}
    async with ApiServer() as server, Client(server.kubeconfig(tmp_path / "kubeconfig")) as client:
        with pytest.raises(ClusterError, match="Request entity too large: limit is 3145728"):
            await client.apply(f"{NODES}/{NAME}", "one", body)
    assert [each.status for each in server.asked] == [413]


@pytest.mark.parametrize("value", ["-SHARED", "x" * 64, "two words", "显卡"])
def test_a_label_has_a_value_of_a_label(store: Store, value: str) -> None:
    """What no API server takes is refused, and nothing has happened."""
    with pytest.raises(InvalidError, match="Invalid value"):
        apply(store, "one", {"x": value})
    assert apply(store, "one", {"x": ""}) == {"team": "a", "x": ""}


@pytest.mark.parametrize("turns", range(5))
async def test_a_server_that_stops_leaves_no_connection_open(turns: int) -> None:
    """Not even a connection that comes in the last turns of the event loop; pytest reports what is found unclosed."""
    async with ApiServer() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.stop()
            with suppress(ConnectionResetError):  # the kernel does it where nobody has accepted the connection
                assert await asyncio.to_thread(client.recv, 1) == b""
    gc.collect()

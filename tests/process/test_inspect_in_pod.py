"""`gpushare inspect` and `gpushare explain` in pods of the chart: `kubectl exec`, without a kubeconfig."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare_plugin.ledger.node_record import encode
from gpushare_plugin.testing.cluster import ApiServer, granted
from tests.chart.rendering import objects
from tests.namespaces import unshared
from tests.process.test_extender import ON, Extender
from tests.process.test_inspect import a_node, running
from tests.unit.kube.certificates import Authority
from tests.unit.kube.pods import PODS, pod
from tests.unit.observe.cluster.clusters import gpu, recorded
from tests.unit.partitioner.partitioners import create_node, create_pod

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_MOUNTED = f"""
mount -t tmpfs none /var/run && mkdir -p {_ACCOUNT} && cp "$1"/token "$1"/ca.crt {_ACCOUNT}; shift
exec "$@"
"""
"""A shell's program that runs another one where the kubelet has mounted the service account of a pod."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    """Run an API server with HTTPS and the chart's rights of the extender, with a GPU node, and two pods."""
    authority, started = Authority("cluster"), ApiServer(granted(objects(ON), "gpushare-extender"))
    started.tls = authority.server(tmp_path)
    authority.write(tmp_path / "ca.crt")
    async with started:
        user = json.loads(started.kubeconfig(tmp_path / "kubeconfig").read_text())["users"][0]["user"]
        (tmp_path / "token").write_text(user["token"])
        a_node(started, "gpu-1", encode(recorded(gpu("gpu-1", 0))))
        running(started, "model", "gpu-1", 8, "GPU-gpu-1-0")
        started.store.create(PODS, {**pod("train", units="20"), "status": {"phase": "Pending"}})
        yield started


async def in_pod(server: ApiServer, account: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `gpushare` with the environment of the extender's container, and the service account below `account`."""
    environment = Extender("first", "192.0.2.1").environment | {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.port),
        "PYTHONPATH": ":".join(sys.path),
    }
    shell = ("sh", "-c", _MOUNTED, "sh", str(account))
    command = (*unshared("--mount"), *shell, sys.executable, "-m", "gpushare_plugin", *arguments)
    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, check=False
    )


async def test_the_extenders_pod_shows_the_cluster(server: ApiServer, tmp_path: Path) -> None:
    """`inspect` and `explain` find the service account, whose rights suffice; nothing else is installed or set."""
    done = await in_pod(server, tmp_path, "inspect")
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpu-1  10.0.0.5   8/15                   8/15" in done.stdout
    done = await in_pod(server, tmp_path, "explain", "train", "-n", "team")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no GPU has 20 units of aliyun.com/gpu-mem free" in done.stdout
    assert 403 not in {each.status for each in server.asked}


async def test_a_slice_is_explained_without_the_right_to_see_the_partitioner(server: ApiServer, tmp_path: Path) -> None:
    """What the extender may not read is said, and the rest is shown."""
    create_node(server, "n0", 40)
    create_pod(server, "sliced", "10gb")
    done = await in_pod(server, tmp_path, "explain", "sliced", "-n", "team")
    assert (done.returncode, done.stderr) == (0, "")
    assert "It is not known whether a partitioner runs: you may not get the Lease" in done.stdout


async def test_a_pod_without_the_rights_says_which_are_missing_and_who_has_them(
    server: ApiServer, tmp_path: Path
) -> None:
    """In a daemon's pod, whose service account may list Nodes and no Pods, and with a token that nobody knows."""
    server.permissions = granted(objects({}), "gpushare")
    done = await in_pod(server, tmp_path, "inspect")
    assert done.returncode == 1
    assert "this needs the right to list pods in the whole cluster, which the service account of this" in done.stderr
    assert "run this in a pod of the scheduler extender" in done.stderr
    (tmp_path / "token").write_text("another")
    done = await in_pod(server, tmp_path, "inspect")
    assert "does not accept the token of this pod's service account" in done.stderr


async def test_a_pod_without_a_token_says_where_to_run_the_command(server: ApiServer, tmp_path: Path) -> None:
    """As those of MPS and MIG have none."""
    empty = tmp_path / "empty"
    empty.mkdir()
    shutil.copy(tmp_path / "ca.crt", empty)
    (empty / "token").touch()
    done = await in_pod(server, empty, "inspect")
    assert done.returncode == 1
    assert "the pod's service account is not usable" in done.stderr
    assert "run this in a pod of the scheduler extender" in done.stderr

"""Tests of `gpushare mps` with protocol 3: the server and the namespaces that the plugin wants."""

from pathlib import Path

import pytest

from gpushare_plugin.core.namespaces import MpsProtocol
from gpushare_plugin.gpus.exchange import write_message
from gpushare_plugin.mps.control import Control
from gpushare_plugin.mps.exchange import MpsGpu, MpsNamespace, MpsRoot, MpsSettings
from gpushare_plugin.testing.mps import FakeMps
from tests.logs import logged
from tests.unit.mps.roots import UUIDS, make_root
from tests.unit.mps.supervised import Supervised, control_daemon, supervising
from tests.waiting import until

GPUS = (MpsGpu(uuid=UUIDS[0]), MpsGpu(uuid=UUIDS[1]))
ONE = MpsNamespace(name="c_one", memory_limit_mib=3000, active_thread_percentage=30)
TWO = MpsNamespace(name="c_two", memory_limit_mib=4096)


def want(root: MpsRoot, *namespaces: MpsNamespace, revision: int = 1, protocol: MpsProtocol = 3) -> None:
    """Want both GPUs with these namespaces."""
    write_message(root.wanted, MpsSettings(gpus=GPUS, protocol=protocol, namespaces=namespaces, revision=revision))


def limits(mps: FakeMps, root: MpsRoot) -> dict[str, list[str]]:
    """Return the limits of all namespaces but the default one, as the control daemon tells them."""
    lines = mps.ask(root.pipe, "namespace list --server=gpushare --format=csv,noheader").splitlines()
    rows = (line.split(",") for line in lines)
    return {name: [memory, threads] for name, _, _, memory, threads, *_ in rows if name != "default"}


async def made(supervised: Supervised, *namespaces: MpsNamespace) -> None:
    """Wait until exactly these namespaces are reported."""
    await until(lambda: supervised.status().in_force.namespaces == namespaces, lambda: str(supervised.status()))


async def test_namespaces_come_and_go_as_wanted(mps: FakeMps, root: MpsRoot) -> None:
    """Each has its limits when it is reported; one that is not wanted any more is gone; limits change in place."""
    want(root, ONE, TWO)
    async with supervising(root) as supervised:
        await made(supervised, ONE, TWO)
        assert supervised.status().in_force.gpus == GPUS
        assert limits(mps, root) == {"c_one": ["3000M", "30.00"], "c_two": ["4G", "100.00"]}
        more = ONE.model_copy(update={"memory_limit_mib": 5000})
        want(root, more, revision=2)
        await made(supervised, more)
        assert supervised.status().in_force.revision == 2
        assert limits(mps, root) == {"c_one": ["5000M", "30.00"]}
    assert mps.processes() == []


async def test_a_namespace_with_clients_outlives_its_container(mps: FakeMps, root: MpsRoot) -> None:
    """A program that still runs keeps its namespace; without a client the namespace is deleted."""
    want(root, ONE)
    async with supervising(root) as supervised:
        await made(supervised, ONE)
        with mps.program({"CUDA_MPS_PIPE_DIRECTORY": str(root.namespace("c_one")), "NVIDIA_VISIBLE_DEVICES": UUIDS[0]}):
            want(root, TWO, revision=2)
            await made(supervised, TWO)
            assert set(limits(mps, root)) == {"c_one", "c_two"}
            (client,) = supervised.status().clients or ()
            assert (client.namespace, client.memory_limit_mib) == ("c_one", 3000)
        await until(lambda: set(limits(mps, root)) == {"c_two"})


async def test_a_client_without_a_limit_is_doubtful(mps: FakeMps, root: MpsRoot) -> None:
    """A program that reached another socket than that of a container's namespace has no limit of a container."""
    want(root, ONE)
    async with supervising(root) as supervised:
        await made(supervised, ONE)
        with mps.program({"CUDA_MPS_PIPE_DIRECTORY": str(root.namespace("")), "NVIDIA_VISIBLE_DEVICES": UUIDS[0]}):
            await until(lambda: supervised.status().clients)
            (client,) = supervised.status().clients or ()
    assert (client.namespace, client.memory_limit_mib) == ("default", None)
    assert client.doubt == "it uses the namespace default of the MPS server gpushare, which has no limit"


async def test_limits_that_others_change_are_set_again(mps: FakeMps, root: MpsRoot) -> None:
    """The log has what was found; a namespace that somebody made is deleted."""
    want(root, ONE)
    with logged() as log:
        async with supervising(root) as supervised:
            await made(supervised, ONE)
            mps.ask(root.pipe, "namespace set c_one --server=gpushare --pinned-memory-limit=20G")
            mps.ask(root.pipe, "namespace create c_stranger --server=gpushare")
            await until(lambda: limits(mps, root) == {"c_one": ["3000M", "30.00"]})
    (found,) = [each["found"] for each in log if each["event"] == "mps_limits_restored"]
    assert found == {"c_one": "20G of memory and 30.00 % of the threads"}


async def test_changes_too_small_to_be_told_are_set(mps: FakeMps, root: MpsRoot) -> None:
    """Where the control daemon tells whole GB, a wanted change is made all the same, and one from outside is undone."""
    mps.tell_whole_gb()
    want(root, ONE, TWO)
    async with supervising(root) as supervised:
        await made(supervised, ONE, TWO)
        assert limits(mps, root)["c_two"] == ["4G", "100.00"]
        more = TWO.model_copy(update={"memory_limit_mib": 4500})
        want(root, ONE, more, revision=2)
        await made(supervised, ONE, more)
        pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(root.namespace("c_two")), "NVIDIA_VISIBLE_DEVICES": UUIDS[0]}
        assert memory(mps, pipe) == [4500]
        mps.ask(root.pipe, "namespace set c_two --server=gpushare --pinned-memory-limit=5000M")
        await until(lambda: memory(mps, pipe) == [4500])


def memory(mps: FakeMps, environment: dict[str, str]) -> list[int | None]:
    """Return the limits of a program with this environment."""
    with mps.program(environment) as program:
        return program.memory_mib


@pytest.mark.usefixtures("mps")
async def test_each_namespace_has_its_turn(root: MpsRoot) -> None:
    """Of many namespaces, a few are set again at each look, until all of them have been."""
    many = tuple(MpsNamespace(name=f"c_{number:02}", memory_limit_mib=1000 + number) for number in range(11))
    want(root, *many)
    async with supervising(root) as supervised:
        await made(supervised, *many)
        noted = len(set_again(root))
        await until(lambda: {*set_again(root)[noted:]} == {each.name for each in many})


def set_again(root: MpsRoot) -> list[str]:
    """Return the namespaces whose limits were set, by the log of the control daemon."""
    lines = (root.log / "control.log").read_text().splitlines()
    return [line.partition("Cmd:namespace set ")[2].split()[0] for line in lines if "Cmd:namespace set " in line]


async def test_a_namespace_that_cannot_be_made_keeps_no_other_waiting(mps: FakeMps, root: MpsRoot) -> None:
    """The others are in effect, the GPUs are served, and the status says which one is not, and why."""
    mps.ignore("create c_one")
    want(root, ONE, TWO)
    async with supervising(root) as supervised:
        await made(supervised, TWO)
        assert supervised.status().not_served == {}
        assert "1 MPS namespaces do not have their limits: c_one: " in str(supervised.status().problem)
        why = supervised.status().why_missing(ONE, MpsSettings(protocol=3, namespaces=(ONE, TWO), revision=1))
        assert why == supervised.status().problem
        mps.ignore(None)
        await made(supervised, ONE, TWO)


async def test_a_server_that_ends_is_made_again(mps: FakeMps, root: MpsRoot) -> None:
    """Its namespaces are not reported meanwhile; the new server has them all."""
    want(root, ONE)
    with logged() as log:
        async with supervising(root) as supervised:
            await made(supervised, ONE)
            daemon = control_daemon(root.pipe)
            assert daemon is not None
            (server,) = {*mps.processes()} - {daemon.pid}
            mps.kill(server)
            await until(lambda: [each for each in log if each["event"] == "mps_server_created"][1:])
            await made(supervised, ONE)
            assert limits(mps, root) == {"c_one": ["3000M", "30.00"]}
            assert daemon.alive
            mps.crash(root.pipe)
            await until(lambda: [each for each in log if each["event"] == "mps_daemon_started"][1:])
            await made(supervised, ONE)
            assert not [each for each in log if each["event"] == "mps_pipe_directory_cleaned"]
    assert [each["pid"] for each in log if each["event"] == "mps_server_ended"] == [server]
    assert any("has ended, and its clients with it" in str(each.get("reason")) for each in log)


async def test_a_daemon_of_an_earlier_run_keeps_server_and_clients(
    mps: FakeMps, root: MpsRoot, control: Control
) -> None:
    """The protocol of a daemon is known by its command line."""
    daemon = await control.start(UUIDS[:2], 3)
    assert daemon.protocol == 3
    mps.ask(root.pipe, "server create gpushare")
    mps.ask(root.pipe, "namespace create c_one --server=gpushare")
    want(root, ONE)
    async with supervising(root) as supervised:
        await made(supervised, ONE)
        assert control_daemon(root.pipe) == daemon
        assert limits(mps, root) == {"c_one": ["3000M", "30.00"]}


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
async def test_another_protocol_waits_for_clients(
    mps: FakeMps, root: MpsRoot, before: MpsProtocol, after: MpsProtocol
) -> None:
    """A daemon with clients is not replaced; the GPUs are not served meanwhile, and the status says why."""
    namespaces = (ONE,) if before == 3 else ()
    want(root, *namespaces, protocol=before)
    async with supervising(root) as supervised:
        await supervised.serves(*GPUS)
        first = mps.pid(root.pipe)
        pipe = root.namespace("default") if before == 3 else root.pipe
        with mps.program({"CUDA_MPS_PIPE_DIRECTORY": str(pipe), "NVIDIA_VISIBLE_DEVICES": UUIDS[0]}):
            want(root, protocol=after)
            await supervised.says(
                UUIDS[0], "must restart to change its protocol, which waits for 1 process that uses it"
            )
            assert mps.pid(root.pipe) == first
            assert before != 3 or set(limits(mps, root)) == {"c_one"}  # a container may start a program yet
        await until(lambda: supervised.status().in_force.protocol == after)
        await supervised.serves(*GPUS)
        assert mps.pid(root.pipe) != first


async def test_a_driver_without_the_protocol_says_so(mps: FakeMps, root: MpsRoot) -> None:
    """The reason has the command and what the program printed."""
    mps.know_protocol_2_only()
    want(root, ONE)
    async with supervising(root) as supervised:
        await supervised.says(UUIDS[0], "nvidia-cuda-mps-control -d -p 3 exited with status 1")
    assert mps.processes() == []


async def test_a_path_too_long_for_sockets_of_namespaces_is_told(mps: FakeMps, short_path: Path) -> None:
    """A root that is short enough for protocol 2 may be too long for the folders of protocol 3."""
    folder = short_path / ("x" * (70 - len(bytes(short_path))))
    folder.mkdir()
    root = make_root(folder)
    want(root, ONE)
    async with supervising(root) as supervised:
        await supervised.says(UUIDS[0], "choose a shorter MPS root for protocol 3")
    assert mps.processes() == []

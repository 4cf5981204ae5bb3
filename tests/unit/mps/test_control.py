"""Tests of `gpushare_plugin.mps.control` and `processes`, with daemons that really run."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from gpushare_plugin.mps.control import Control, ControlError
from gpushare_plugin.mps.exchange import MpsGpu, MpsRoot, MpsSettings
from gpushare_plugin.mps.processes import (
    CONTROL_PROGRAM,
    SERVER_PROGRAM,
    MpsProcess,
    candidates,
    servers,
)
from gpushare_plugin.testing.mps import FakeMps
from tests.logs import logged
from tests.namespaces import unshared
from tests.unit.mps.roots import UUIDS
from tests.unit.mps.supervised import control_daemon
from tests.waiting import PATIENCE, until, until_blocking


def environment_of(process: MpsProcess) -> list[bytes]:
    """Return the variables of a process."""
    return Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")


def lives(process: MpsProcess) -> bool:
    """Ask again whether a process is alive, which no type checker may take for known."""
    return process.alive


async def test_a_daemon_is_found_wherever_it_came_from(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """The daemon is known by its own environment: its GPUs in their order, and only in its own pipe directory."""
    assert control.find() is None
    started = await control.start(UUIDS[:2])
    assert started == control.find() == control_daemon(root.pipe)
    assert (started.pid, started.devices) == (mps.pid(root.pipe), UUIDS[:2])
    assert lives(started)
    assert control_daemon(root.log) is None
    with pytest.raises(ControlError, match="already running"):
        await control.start(UUIDS[:1])
    await control.quit(started)
    assert not lives(started)
    assert control.find() is None


@pytest.mark.parametrize("knows", [True, False], ids=["580", "535"])
async def test_clients_of_all_users_are_served_at_once_where_the_program_can(
    mps: FakeMps, control: Control, *, knows: bool
) -> None:
    """Pods run as different users; a version without the option is started without the option."""
    if not knows:
        mps.serve_one_user()
    with logged() as told:
        daemon = await control.start(UUIDS[:1])
    assert ("-multiuser-server" in daemon.process.cmdline()) is knows
    assert daemon == control.find()
    assert [each["event"] for each in told] == ([] if knows else ["mps_one_user_at_a_time"])


@pytest.fixture
def collected_by_the_loop() -> Iterator[None]:
    """Let the event loop itself collect the status of children, as it does from Python 3.12 on."""
    if sys.version_info >= (3, 12):
        yield
    else:
        before = asyncio.get_child_watcher()
        asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
        yield
        asyncio.set_child_watcher(before)


@pytest.mark.usefixtures("collected_by_the_loop")
@pytest.mark.parametrize("steps", range(8))
async def test_a_command_that_ends_while_it_is_given_up_is_no_surprise(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, steps: int
) -> None:
    """The status of the command stays for asyncio, which would otherwise write a warning to the log of the daemon."""
    program, end = tmp_path / CONTROL_PROGRAM, tmp_path / "end"
    program.write_text(f"#!/bin/sh\nwhile [ ! -e {end} ]; do sleep 0.01; done\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    us = psutil.Process()
    before = set(us.children())
    starting = asyncio.create_task(control.start(UUIDS[:1]))
    while not (commands := set(us.children()) - before):  # noqa: ASYNC110 - nothing tells that there is a child
        await asyncio.sleep(0)
    for _ in range(steps):  # further on in the start of the command
        await asyncio.sleep(0)
    end.touch()
    (command,) = commands
    until_blocking(lambda: command.status() == psutil.STATUS_ZOMBIE)  # while the event loop stands still
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not set(us.children()) - before)
    assert caplog.messages == []


async def test_our_own_variables_are_not_the_daemons(
    mps: FakeMps, control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens to be set for CUDA here is no setting of the daemon; everything else is handed down."""
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/driver")
    daemon = await control.start(UUIDS[:1])
    environment = environment_of(daemon)
    assert [each for each in environment if each.startswith(b"CUDA_VISIBLE")] == [
        f"CUDA_VISIBLE_DEVICES={UUIDS[0]}".encode()
    ]
    assert not any(each.startswith(b"CUDA_MPS_ACTIVE") for each in environment)
    assert b"LD_LIBRARY_PATH=/driver" in environment
    assert mps.processes() == [daemon.pid]


@contextlib.contextmanager
def lookalike(
    *arguments: str, pipe: Path, listen: Path | None = None, name: str = CONTROL_PROGRAM, before: tuple[str, ...] = ()
) -> Iterator[int]:
    """Run a process with the name, arguments and environment of a daemon, which may listen; yield its number."""
    code = (
        "import os, socket, sys, time\n"
        "listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "sys.argv[1] and (listener.bind(sys.argv[1]), listener.listen())\n"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    named = ("bash", "-c", 'exec -a "$0" "$@"', name, sys.executable)
    with subprocess.Popen(
        [*before, *named, "-c", code, str(listen or ""), *arguments],
        env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipe)},
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        try:
            yield int(child.stdout.readline())
        finally:
            child.kill()


def test_a_process_that_only_looks_like_the_daemon_is_none(root: MpsRoot) -> None:
    """A command on its way to the daemon is not the daemon, and one of the same name elsewhere is not ours."""
    for name, arguments, pipe in (
        (CONTROL_PROGRAM, (), root.pipe),
        (CONTROL_PROGRAM, ("-d",), root.log),
        ("something", ("-d",), root.pipe),
    ):
        with lookalike(*arguments, pipe=pipe, name=name, listen=root.pipe / "control"):
            assert list(candidates(root.pipe)) == []
        (root.pipe / "control").unlink()


@pytest.mark.parametrize("where", [None, "elsewhere"])
def test_a_daemon_listens_on_its_socket(root: MpsRoot, where: str | None) -> None:
    """A process that has all of a daemon but the socket is none; it is ignored, and the log says so once."""
    control = Control(root.pipe, root.log, clock=lambda: 0.0)
    with lookalike("-d", pipe=root.pipe, listen=root.pipe / where if where else None) as pid, logged() as told:
        assert control.find() is None
        assert control.find() is None
    event = "mps_daemon_ignored"
    reason = f"it does not listen on {root.pipe}/control"
    assert told == [{"event": event, "pid": pid, "reason": reason, "log_level": "warning"}]


def test_processes_that_look_like_the_daemon_do_not_fill_the_log(root: MpsRoot) -> None:
    """However many of them a container starts, one is logged in ten minutes."""
    clock = [0.0]
    control = Control(root.pipe, root.log, clock=lambda: clock[0])
    lines = []
    for clock[0] in (0.0, 1.0, 599.0, 600.0):
        with lookalike("-d", pipe=root.pipe), logged() as told:
            assert control.find() is None
        lines.append(len(told))
    assert lines == [1, 0, 0, 1]


_OWN_INIT = """
import asyncio, os, psutil
from gpushare_plugin.mps.processes import MpsProcess
if not os.fork():
    gone = asyncio.run(MpsProcess(psutil.Process(1), ()).end(patience=0.05, killed_within=0.05))
    print("gone" if gone else "stays", flush=True)
    os._exit(0)
os.wait()
"""


def test_a_process_that_stays_after_a_kill_is_not_waited_for() -> None:
    """The first process of a PID namespace, which nothing inside can kill, stands for one in a call of the driver."""
    command = [*unshared("--pid", "--fork", "--mount-proc"), sys.executable, "-c", _OWN_INIT]
    said = subprocess.run(command, capture_output=True, check=True, text=True, timeout=PATIENCE).stdout
    assert "mps_process_stays" in said
    assert said.endswith("stays\n")


def test_a_server_sees_our_file_systems(root: MpsRoot) -> None:
    """A process of a pod that has the name and the environment of a server is none: it neither counts nor is ended."""
    with lookalike(pipe=root.pipe, name=SERVER_PROGRAM) as pid:
        assert [each.pid for each in servers(root.pipe)] == [pid]
    with lookalike(pipe=root.pipe, name=SERVER_PROGRAM, before=unshared("--mount")):
        assert servers(root.pipe) == []


def test_a_daemon_sees_our_file_systems(root: MpsRoot) -> None:
    """A process of another container, which may have a directory of its own at the same path, is no daemon of ours."""
    with lookalike("-d", pipe=root.pipe, listen=root.pipe / "control") as pid:
        daemon = control_daemon(root.pipe)
        assert daemon is not None
        assert daemon.pid == pid
    (root.pipe / "control").unlink()
    with lookalike("-d", pipe=root.pipe, listen=root.pipe / "control", before=unshared("--mount")) as pid:
        (found,) = candidates(root.pipe)
        assert (found.process.pid, found.objection) == (pid, "it runs in another mount namespace than gpushare mps")
        assert control_daemon(root.pipe) is None


async def test_a_silent_daemon_names_who_is_connected(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """Whoever is connected is named, with what leads to its pod."""
    daemon = await control.start(UUIDS[:1])
    assert control.holders(daemon) == "connected to it: no process"
    with mps.fall_silent(root.pipe):
        await until(lambda: f"process {os.getpid()} (" in control.holders(daemon))
        assert f", user {os.geteuid()}, control group /" in control.holders(daemon)
    with lookalike("-d", pipe=root.log):
        (ended,) = candidates(root.log)
    assert control.holders(ended.process).startswith("cannot determine which processes are connected to it (")


async def test_no_answer_is_not_an_empty_answer(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """While a prompt is open elsewhere, commands end well and say nothing: that is no list of no servers."""
    await control.start(UUIDS[:1])
    mps.connect(root.pipe, mps.start_server(root.pipe), 4711)
    with mps.prompt(root.pipe) as prompt:
        assert prompt.ask("get_default_active_thread_percentage") == (0, "100.0")
        said = ""
        for patience in (1.0, 5.0, 25.0):  # in which the program can start, on a busy machine too
            with pytest.raises(ControlError) as refused:
                await Control(root.pipe, root.log, patience).clients()
            said = str(refused.value)
            if "had no answer within" not in said:
                break
    assert "while a prompt is open elsewhere" in said
    assert [each.pid for each in await control.clients()] == [4711]


async def test_limits_that_others_change_are_restored(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """Limits are read back, told where they are other ones, and set again, of servers too, also where none shows."""
    await control.start(UUIDS[:2])
    server = mps.start_server(root.pipe)
    gpus = (MpsGpu(uuid=UUIDS[0], memory_limit_mib=10240), MpsGpu(uuid=UUIDS[1]))
    settings = MpsSettings(gpus=gpus, active_thread_percentage=25)
    await control.limit(UUIDS[:2], settings)
    assert await control.restore(UUIDS[:2], settings) == {}
    for change in (
        "set_default_device_pinned_mem_limit 0 79G",
        "set_default_device_pinned_mem_limit 1 5M",
        f"set_active_thread_percentage {server} 100",
        f"set_device_pinned_mem_limit {server} 0 0M",
    ):
        mps.ask(root.pipe, change)
    assert await control.restore(UUIDS[:2], settings) == {
        "set_default_device_pinned_mem_limit 0 10240M": "79G",
        "set_default_device_pinned_mem_limit 1 0M": "5M",
        f"set_active_thread_percentage {server} 25": "100.0",
        f"set_device_pinned_mem_limit {server} 0 10240M": "",
    }
    assert await control.restore(UUIDS[:2], settings) == {}
    mps.ask(root.pipe, "set_default_device_pinned_mem_limit 0 11263M")
    assert await control.restore(UUIDS[:2], settings) == {}
    assert (
        "Cmd:set_default_device_pinned_mem_limit 0 10240M"
        in (root.log / "control.log").read_text().rpartition("11263M")[2]
    )


async def test_a_limit_is_read_and_set_before_anybody_else_is_heard(
    mps: FakeMps, root: MpsRoot, control: Control
) -> None:
    """No connection of another process comes between: whoever changes a limit before is seen, whoever after, later."""
    await control.start(UUIDS[:1])
    server = mps.start_server(root.pipe)
    settings = MpsSettings(gpus=(MpsGpu(uuid=UUIDS[0], memory_limit_mib=10240),), active_thread_percentage=25)
    await control.limit(UUIDS[:1], settings)
    told = (root.log / "control.log").read_text()
    assert await control.restore(UUIDS[:1], settings) == {}
    said = (root.log / "control.log").read_text().removeprefix(told)
    of_one = [
        [each.rpartition("Cmd:")[2] for each in part.splitlines() if "Cmd:" in each] for part in said.split("NEW UI")
    ]
    for name in (
        "default_device_pinned_mem_limit 0",
        "default_active_thread_percentage",
        f"device_pinned_mem_limit {server} 0",
        f"active_thread_percentage {server}",
    ):
        value = "10240M" if "mem_limit" in name else "25"
        assert [f"get_{name}", f"set_{name} {value}", "get_default_active_thread_percentage"] in of_one


async def test_clients_of_all_servers_are_counted(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """All clients of all servers count, also those of whom the daemon knows no number (another PID namespace)."""
    await control.start(UUIDS[:1])
    assert await control.clients() == ()
    first, second = mps.start_server(root.pipe), mps.start_server(root.pipe, user=1000)
    for server, client in ((first, 0), (first, 0), (second, 17)):
        mps.connect(root.pipe, server, client)
    assert len(await control.clients()) == 3
    assert sorted(each.pid for each in servers(root.pipe)) == sorted([first, second])


async def test_quitting_does_not_wait_for_clients_for_ever(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """Clients get a few seconds, then the daemon ends with its servers."""
    daemon = await control.start(UUIDS[:1])
    mps.connect(root.pipe, mps.start_server(root.pipe), 4711)
    await control.quit(daemon)
    assert mps.processes() == []


async def test_no_daemon_is_an_error_with_words(mps: FakeMps, control: Control) -> None:
    """The program's own words are reported."""
    with pytest.raises(ControlError, match="'get_server_list': Cannot find MPS control daemon process"):
        await control.ask("get_server_list")
    assert mps.processes() == []


async def test_a_daemon_that_hangs_is_an_error_with_words(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """The wait is no longer than patience lasts, and the command that asked the daemon is gone."""
    daemon = await control.start(UUIDS[:1])
    mps.hang(root.pipe)
    with pytest.raises(ControlError, match="had no answer within 1 s"):
        await Control(root.pipe, root.log, patience=1.0).probe()
    await daemon.end(patience=0.05)
    assert not lives(daemon)
    await daemon.end()


@pytest.mark.parametrize("command", ["set_default_active_thread_percentage", "set_default_device_pinned_mem_limit"])
async def test_limits_that_are_refused_are_errors(mps: FakeMps, control: Control, command: str) -> None:
    """A limit that is not there afterwards was refused, and the error has the command."""
    await control.start(UUIDS[:1])
    mps.ignore(command)
    gpus = (MpsGpu(uuid=UUIDS[0], memory_limit_mib=1),)
    with pytest.raises(ControlError, match=f"did not apply '{command}"):
        await control.limit(UUIDS[:1], MpsSettings(gpus=gpus, active_thread_percentage=50))


async def test_a_program_that_cannot_be_run_is_an_error_with_its_path(mps: FakeMps, control: Control) -> None:
    """Here the file is no program."""
    program = mps.programs / CONTROL_PROGRAM
    program.write_text("#!/nowhere\n")
    with pytest.raises(ControlError, match=f"{program} cannot be run"):
        await control.probe()


def test_a_number_used_again_is_another_process() -> None:
    """A process is distinguished from a later one of the same number by when it began."""
    program = (sys.executable, "-m", "tests.unit.mps.numbers")
    own = unshared("--pid", "--fork", "--mount-proc")
    told = subprocess.run([*own, *program], capture_output=True, text=True, check=True).stdout
    assert told == "the first: False, the second: True\n"

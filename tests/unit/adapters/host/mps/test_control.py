"""Tests of `gpushare_plugin.programs.mps.control` and `processes`, with daemons that really run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_plugin.adapters.host.mps.exchange import MpsGpu, MpsRoot, MpsSettings
from gpushare_plugin.programs.mps.control import Control, ControlError
from gpushare_plugin.programs.mps.processes import CONTROL_PROGRAM, MpsProcess, control_daemon, servers
from gpushare_plugin.testing.mps import FakeMps
from tests.unit.adapters.host.mps.keeping import UUIDS


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


def test_a_process_that_only_looks_like_it_is_none(root: MpsRoot) -> None:
    """A command on its way to the daemon is not the daemon, and one of the same name elsewhere is not ours."""
    environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(root.pipe)}
    sleep = "import time; print(flush=True); time.sleep(60)"
    for name, arguments, variables in (
        (CONTROL_PROGRAM, [], environment),
        (CONTROL_PROGRAM, ["-d"], dict(os.environ)),
        ("something", ["-d"], environment),
    ):
        with subprocess.Popen(
            [name, "-c", sleep, *arguments], executable=sys.executable, env=variables, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            assert control_daemon(root.pipe) is None
            child.kill()


async def test_clients_are_counted(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """All clients of all servers count, also those of whom the daemon knows no number (another PID namespace)."""
    await control.start(UUIDS[:1])
    assert await control.clients() == 0
    first, second = mps.start_server(root.pipe), mps.start_server(root.pipe, user=1000)
    for server, client in ((first, 0), (first, 0), (second, 17)):
        mps.connect(root.pipe, server, client)
    assert await control.clients() == 3
    assert sorted(each.pid for each in servers(root.pipe)) == sorted([first, second])


async def test_quitting_does_not_wait_for_clients_for_ever(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """Clients get a few seconds, then the daemon ends with its servers."""
    daemon = await control.start(UUIDS[:1])
    mps.connect(root.pipe, mps.start_server(root.pipe), 4711)
    await control.quit(daemon)
    assert mps.processes() == []


async def test_no_daemon_is_an_error_with_words(mps: FakeMps, control: Control) -> None:
    """The program's own words are told."""
    with pytest.raises(ControlError, match="'get_server_list': Cannot find MPS control daemon process"):
        await control.ask("get_server_list")
    assert mps.processes() == []


async def test_a_daemon_that_hangs_is_an_error_with_words(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """It is not waited for longer than patience lasts, and the command that asked it is gone."""
    daemon = await control.start(UUIDS[:1])
    mps.hang(root.pipe)
    with pytest.raises(ControlError, match="had no answer within 1 s"):
        await Control(root.pipe, root.log, patience=1.0).probe()
    await daemon.end(patience=0.05)
    assert not lives(daemon)
    await daemon.end()


async def test_limits_that_are_refused_are_errors(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """A percentage that is answered by another one, or a limit that is not there afterwards, was refused."""
    await control.start(UUIDS[:1])
    for command in ("set_default_active_thread_percentage", "set_default_device_pinned_mem_limit"):
        mps.ignore(command)
        with pytest.raises(ControlError, match=f"refused '{command}"):
            await control.limit(UUIDS[:1], MpsSettings(gpus=(MpsGpu(uuid=UUIDS[0], memory_limit_mib=1),)))
    assert mps.ask(root.pipe, "get_default_device_pinned_mem_limit 0") == ""


async def test_a_program_that_cannot_be_run(mps: FakeMps, control: Control) -> None:
    """A file that is no program is an error with its path."""
    program = mps.programs / CONTROL_PROGRAM
    program.write_text("#!/nowhere\n")
    with pytest.raises(ControlError, match=f"{program} cannot be run"):
        await control.probe()


def test_a_number_used_again_is_another_process() -> None:
    """A process is told from a later one of the same number by when it began."""
    assert not MpsProcess(os.getpid(), 0, ()).alive

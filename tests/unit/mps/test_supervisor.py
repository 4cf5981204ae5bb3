"""Tests of `gpushare_plugin.mps.supervisor`, with daemons that really run."""

import os
import signal
from asyncio import to_thread
from collections.abc import Mapping, Sequence

import pytest

from gpushare_plugin.gpus.compute_modes import ComputeMode
from gpushare_plugin.mps.control import Control
from gpushare_plugin.mps.exchange import ListedClient, MpsGpu, MpsRoot, MpsSettings
from gpushare_plugin.mps.processes import servers
from gpushare_plugin.testing.mps import FakeMps
from tests.logs import logged
from tests.unit.mps.roots import UUIDS
from tests.unit.mps.supervised import Modes, control_daemon, supervising
from tests.waiting import until

ONE = MpsGpu(uuid=UUIDS[0], memory_limit_mib=4096)
OTHER = MpsGpu(uuid=UUIDS[1], memory_limit_mib=500)


async def answers(mps: FakeMps, root: MpsRoot, command: str, answer: str) -> bool:
    """Whether the daemon gives this answer.

    It is asked in a thread, as everywhere here: it may be waiting for a command of the supervisor, which runs in the
    event loop of the test.
    """
    return await to_thread(mps.ask, root.pipe, command) == answer


async def test_wanted_gpus_are_served(mps: FakeMps, root: MpsRoot) -> None:
    """GPUs become exclusive, the daemon runs for them in the order wanted, and has their limits."""
    async with supervising(root) as supervised:
        supervised.want(OTHER, ONE, percentage=25)
        await supervised.serves(OTHER, ONE)
        assert supervised.modes.exclusive == [ONE.uuid, OTHER.uuid]
        daemon = control_daemon(root.pipe)
        assert daemon is not None
        assert (daemon.pid, daemon.devices) == (mps.pid(root.pipe), (OTHER.uuid, ONE.uuid))
        assert await to_thread(mps.ask, root.pipe, "get_default_active_thread_percentage") == "25.0"
        assert await to_thread(mps.ask, root.pipe, "get_default_device_pinned_mem_limit 0") == "500M"
        assert await to_thread(mps.ask, root.pipe, "get_default_device_pinned_mem_limit 1") == "4G"
        assert supervised.status().in_force.active_thread_percentage == 25
        assert supervised.status().since


async def test_the_end_leaves_no_process_and_puts_modes_back(mps: FakeMps, root: MpsRoot) -> None:
    """In the end there is no daemon and no server, and modes are what they were, not just the default."""
    modes = Modes()
    modes.modes[OTHER.uuid] = ComputeMode.EXCLUSIVE_PROCESS
    async with supervising(root, modes) as supervised:
        supervised.want(ONE, OTHER)
        await supervised.serves(ONE, OTHER)
        await to_thread(mps.start_server, root.pipe)
    assert mps.processes() == []
    assert modes.exclusive == [OTHER.uuid]
    assert not root.status.exists()
    assert not root.modes.exists()


async def test_a_node_that_wants_no_mps_has_no_daemon(mps: FakeMps, root: MpsRoot) -> None:
    """A node that wants none any more ends its daemon and puts modes back."""
    async with supervising(root) as supervised:
        await supervised.serves()
        await until(root.status.exists)
        assert mps.processes() == []
        supervised.want(ONE)
        await supervised.serves(ONE)
        supervised.want()
        await supervised.serves()
        await until(lambda: not mps.processes() and not supervised.modes.exclusive)


async def test_a_supervisor_logs_what_it_waits_for(root: MpsRoot) -> None:
    """The reasons are logged once each, also where the file cannot be read in between."""
    with logged() as events:
        async with supervising(root) as supervised:
            await until(lambda: len(_waiting(events)) == 1)
            supervised.want()
            await until(lambda: len(_waiting(events)) == 2)
            root.wanted.write_text("garbage")
            await until(lambda: root.status.exists() and supervised.status().trouble is not None)
            supervised.want()
            await until(lambda: supervised.status().trouble is None)
            supervised.want(ONE)
            await until(lambda: "mps_desired_changed" in [event["event"] for event in events])
            supervised.want()
            await until(lambda: len(_waiting(events)) == 3)
    without_gpus = "no config of this node shares a GPU through MPS"
    assert _waiting(events) == [
        "gpushare run has not written desired settings yet; it needs the same --mps-root",
        *[without_gpus] * 2,
    ]
    assert len([event for event in events if event["event"] == "mps_desired_unreadable"]) == 1


def _waiting(events: Sequence[Mapping[str, object]]) -> list[object]:
    return [event["reason"] for event in events if event["event"] == "mps_waiting"]


async def test_a_crash_of_the_daemon_is_told_and_mended(mps: FakeMps, root: MpsRoot) -> None:
    """After a crash the GPUs are not served and it says why; then a new daemon serves them with the same limits."""
    async with supervising(root) as supervised:
        supervised.want(ONE, percentage=50)
        await supervised.serves(ONE)
        server = await to_thread(mps.start_server, root.pipe)
        first = mps.crash(root.pipe)
        await supervised.says(ONE.uuid, f"(process {first}) has ended; restarting it")
        assert supervised.status().in_force == MpsSettings()
        await supervised.serves(ONE)
        assert mps.pid(root.pipe) != first
        assert server not in mps.processes()
        assert await to_thread(mps.ask, root.pipe, "get_default_active_thread_percentage") == "50.0"


async def test_a_daemon_that_hangs_is_replaced(mps: FakeMps, root: MpsRoot) -> None:
    """One that does not answer and has no servers, so that no program ends, is replaced."""
    async with supervising(root, patience=4.0) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        first = mps.hang(root.pipe)
        await supervised.says(ONE.uuid, "had no answer within 4 s; connected to it: no process; asking again")
        assert supervised.status().in_force == MpsSettings()
        await supervised.says(ONE.uuid, f"replacing process {first}")
        await supervised.serves(ONE)
        assert first not in mps.processes()
        assert mps.pid(root.pipe) != first


async def test_a_silent_daemon_ends_no_program(mps: FakeMps, root: MpsRoot) -> None:
    """Anybody can silence the daemon: its GPUs are not served, it says who is connected, and programs go on."""
    async with supervising(root, patience=4.0) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        first, server = mps.pid(root.pipe), await to_thread(mps.start_server, root.pipe)
        await to_thread(mps.connect, root.pipe, server, 4711)
        with mps.fall_silent(root.pipe):
            await supervised.says(
                ONE.uuid, f"not replacing it, because programs that use its servers ({server}) would end with it"
            )
            assert f"connected to it: process {os.getpid()} (" in supervised.status().not_served[ONE.uuid]
            assert supervised.status().in_force == MpsSettings()
            assert sorted(mps.processes()) == sorted([first, server])
        await supervised.serves(ONE)
        assert mps.pid(root.pipe) == first
        assert await to_thread(mps.ask, root.pipe, f"get_client_list {server}") == "4711"


async def test_a_silent_daemon_ends_programs_if_that_is_asked_for(mps: FakeMps, root: MpsRoot) -> None:
    """With `replace_silent` a silent daemon is replaced with its servers, whoever uses them."""
    async with supervising(root, patience=4.0, replace_silent=True) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        first, server = mps.pid(root.pipe), await to_thread(mps.start_server, root.pipe)
        with mps.fall_silent(root.pipe):
            await supervised.says(ONE.uuid, f"replacing process {first}")
            await supervised.serves(ONE)
        assert not {first, server} & set(mps.processes())


async def test_an_open_prompt_ends_no_program(mps: FakeMps, root: MpsRoot) -> None:
    """While an administrator has a prompt open, it is not known who uses the daemon: nothing is ended."""
    async with supervising(root, patience=4.0) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        first, server = mps.pid(root.pipe), await to_thread(mps.start_server, root.pipe)
        await to_thread(mps.connect, root.pipe, server, 4711)
        with mps.prompt(root.pipe) as prompt:
            await to_thread(prompt.ask, "get_server_list")
            supervised.want(ONE, OTHER)
            await supervised.says(ONE.uuid, "while a prompt is open elsewhere")
        await supervised.says(OTHER.uuid, "waits for 1 process that uses it")
        assert sorted(mps.processes()) == sorted([first, server])


async def test_limits_that_others_change_are_set_again(mps: FakeMps, root: MpsRoot) -> None:
    """Any process that reaches the socket can change limits: the next look restores them, and that is logged."""
    async with supervising(root) as supervised:
        supervised.want(ONE, percentage=25)
        await supervised.serves(ONE)
        with logged() as told:
            await to_thread(mps.ask, root.pipe, "set_default_device_pinned_mem_limit 0 79G")
            await to_thread(mps.ask, root.pipe, "set_default_active_thread_percentage 100")
            await until(lambda: answers(mps, root, "get_default_device_pinned_mem_limit 0", "4G"))
            await until(lambda: answers(mps, root, "get_default_active_thread_percentage", "25.0"))
            await until(lambda: any("found" in each for each in told))
        warnings = [each for each in told if each["event"] == "mps_limits_restored"]
        found = {command: amount for each in warnings for command, amount in each["found"].items()}
        assert found["set_default_device_pinned_mem_limit 0 4096M"] == "79G"
        assert supervised.status().in_force.gpus == (ONE,)


async def test_a_daemon_that_answers_again_is_kept(mps: FakeMps, root: MpsRoot) -> None:
    """One that gave no answer for a while is not replaced: its clients would die for nothing."""
    async with supervising(root, patience=4.0) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        first = mps.hang(root.pipe)
        await supervised.says(ONE.uuid, "asking again")
        os.kill(first, signal.SIGCONT)
        await supervised.serves(ONE)
        assert mps.pid(root.pipe) == first


async def test_a_program_that_disappears_ends_no_daemon(
    mps: FakeMps, root: MpsRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that cannot be asked, for want of the program, goes on and is asked once it can be."""
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        first = mps.pid(root.pipe)
        monkeypatch.setenv("PATH", "/nowhere")
        supervised.want(OTHER)
        await supervised.says(OTHER.uuid, "is not in PATH")
        assert mps.pid(root.pipe) == first
        assert supervised.status().in_force.gpus == (ONE,)
        monkeypatch.setenv("PATH", mps.environment["PATH"])
        await supervised.serves(OTHER)


async def test_a_daemon_that_serves_is_taken_over(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """A daemon of an earlier run goes on, with its clients, and gets the limits wanted now."""
    earlier = await control.start([ONE.uuid, OTHER.uuid])
    server = await to_thread(mps.start_server, root.pipe)
    await to_thread(mps.connect, root.pipe, server, 4711)
    async with supervising(root) as supervised:
        supervised.want(OTHER, ONE)
        await supervised.serves(ONE, OTHER)
        assert mps.pid(root.pipe) == earlier.pid
        assert await to_thread(mps.ask, root.pipe, f"get_client_list {server}") == "4711"
        assert await to_thread(mps.ask, root.pipe, f"get_device_pinned_mem_limit {server} 0") == "4G"


async def test_a_daemon_that_hangs_is_not_taken_over(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """What an earlier run left and does not answer is removed at once."""
    earlier = await control.start([ONE.uuid])
    mps.hang(root.pipe)
    async with supervising(root, patience=4.0) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        assert earlier.pid not in mps.processes()


async def test_servers_without_a_daemon_are_ended(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """Servers that an earlier run left hold exclusive GPUs: they are ended before a daemon starts."""
    await control.start([ONE.uuid])
    server = await to_thread(mps.start_server, root.pipe)
    mps.crash(root.pipe)
    assert [each.pid for each in servers(root.pipe)] == [server]
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        assert server not in mps.processes()


async def test_limits_change_at_once(mps: FakeMps, root: MpsRoot) -> None:
    """Other limits reach the daemon and its servers without a restart, a limit taken away included."""
    async with supervising(root) as supervised:
        supervised.want(ONE, OTHER, percentage=50)
        await supervised.serves(ONE, OTHER)
        daemon, server = mps.pid(root.pipe), await to_thread(mps.start_server, root.pipe)
        await to_thread(mps.connect, root.pipe, server, 4711)
        less, none = MpsGpu(uuid=ONE.uuid, memory_limit_mib=900), MpsGpu(uuid=OTHER.uuid)
        supervised.want(less, none)
        await supervised.serves(less, none)
        assert mps.pid(root.pipe) == daemon
        assert await to_thread(mps.ask, root.pipe, "get_default_device_pinned_mem_limit 0") == "900M"
        assert await to_thread(mps.ask, root.pipe, "get_default_device_pinned_mem_limit 1") == ""
        assert await to_thread(mps.ask, root.pipe, "get_default_active_thread_percentage") == "100.0"
        assert await to_thread(mps.ask, root.pipe, f"get_device_pinned_mem_limit {server} 0") == "900M"
        assert await to_thread(mps.ask, root.pipe, f"get_device_pinned_mem_limit {server} 1") == ""
        assert await to_thread(mps.ask, root.pipe, f"get_active_thread_percentage {server}") == "100.0"


async def test_a_new_set_of_gpus_waits_for_clients_of_the_old(mps: FakeMps, root: MpsRoot) -> None:
    """Another set of GPUs needs a new daemon, which waits until no process uses the old one; others are served on."""
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        daemon, server = mps.pid(root.pipe), await to_thread(mps.start_server, root.pipe)
        await to_thread(mps.connect, root.pipe, server, 4711)
        less = MpsGpu(uuid=ONE.uuid, memory_limit_mib=900)
        supervised.want(less, OTHER)
        await supervised.says(OTHER.uuid, "waits for 1 process that uses it")
        await until(lambda: supervised.status().in_force.gpus == (less,), lambda: str(supervised.status()))
        assert ONE.uuid not in supervised.status().not_served
        assert mps.pid(root.pipe) == daemon
        await to_thread(mps.disconnect, root.pipe, server, 4711)
        await supervised.serves(less, OTHER)
        assert mps.pid(root.pipe) != daemon


async def test_a_gpu_that_leaves_stays_exclusive_while_it_is_used(mps: FakeMps, root: MpsRoot) -> None:
    """A GPU that is wanted no more keeps its limit and its mode until the daemon that has it may end."""
    async with supervising(root) as supervised:
        supervised.want(ONE, OTHER)
        await supervised.serves(ONE, OTHER)
        server = await to_thread(mps.start_server, root.pipe)
        await to_thread(mps.connect, root.pipe, server, 4711)
        supervised.want(ONE, percentage=30)
        await until(lambda: supervised.status().in_force.active_thread_percentage == 30)
        assert supervised.status().in_force.gpus == (ONE, OTHER)
        assert OTHER.uuid in supervised.modes.exclusive
        assert await to_thread(mps.ask, root.pipe, "get_default_device_pinned_mem_limit 1") == "500M"
        await to_thread(mps.disconnect, root.pipe, server, 4711)
        await supervised.serves(ONE)
        await until(lambda: supervised.modes.exclusive == [ONE.uuid])


async def test_a_gpu_whose_mode_cannot_be_set_is_left_out(mps: FakeMps, root: MpsRoot) -> None:
    """That GPU is not served and it says why; the others are, and it joins them once its mode can be set."""
    modes = Modes()
    modes.refusals[ONE.uuid] = "Insufficient Permissions"
    async with supervising(root, modes) as supervised:
        supervised.want(ONE, OTHER)
        await supervised.says(ONE.uuid, "its compute mode must be EXCLUSIVE_PROCESS: Insufficient Permissions")
        await until(lambda: supervised.status().in_force.gpus == (OTHER,), lambda: str(supervised.status()))
        assert list(supervised.status().not_served) == [ONE.uuid]
        assert not root.ready.exists()
        daemon = control_daemon(root.pipe)
        assert daemon is not None
        assert daemon.devices == (OTHER.uuid,)
        modes.refusals.clear()
        await supervised.serves(ONE, OTHER)
        await until(root.ready.exists)
        assert len(mps.processes()) == 1


async def test_a_mode_that_somebody_changed_is_set_again(mps: FakeMps, root: MpsRoot) -> None:
    """A driver that was loaded anew, or a person, may have made a GPU shared again: that does not last."""
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        supervised.modes.modes[ONE.uuid] = ComputeMode.DEFAULT
        await until(lambda: supervised.modes.exclusive == [ONE.uuid])
        assert mps.processes()


async def test_a_program_that_is_missing_is_named(mps: FakeMps, root: MpsRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the driver's program it says what is missing and where it comes from; once it is there, it is used."""
    monkeypatch.setenv("PATH", "/nowhere")
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.says(ONE.uuid, "nvidia-cuda-mps-control is not in PATH (/nowhere)")
        assert "NVIDIA_DRIVER_CAPABILITIES" in supervised.status().not_served[ONE.uuid]
        monkeypatch.setenv("PATH", mps.environment["PATH"])
        await supervised.serves(ONE)


async def test_a_daemon_that_does_not_start_says_why(mps: FakeMps, root: MpsRoot) -> None:
    """What the program says is reported, and it is tried again until it starts."""
    mps.refuse_to_start("Some GPU is in a bad mood")
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.says(ONE.uuid, "Some GPU is in a bad mood")
        mps.refuse_to_start(None)
        await supervised.serves(ONE)


async def test_a_limit_that_is_not_taken_is_no_service(mps: FakeMps, root: MpsRoot) -> None:
    """A daemon that passes over a limit in silence does not serve: a pod would have the whole GPU."""
    mps.ignore("set_default_device_pinned_mem_limit")
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.says(ONE.uuid, "did not apply 'set_default_device_pinned_mem_limit 0 4096M'")
        mps.ignore(None)
        await supervised.serves(ONE)


@pytest.mark.parametrize("content", [b"", b"no JSON", b'{"gpus": 7}', b'{"version": 2}', b"\xff", b"[" * 100_000])
async def test_garbage_in_the_settings_changes_nothing(mps: FakeMps, root: MpsRoot, content: bytes) -> None:
    """Settings that cannot be understood leave all as it is, and the status says so; later ones count."""
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        daemon = mps.pid(root.pipe)
        root.wanted.write_bytes(content)
        await until(lambda: str(root.wanted) in (supervised.status().trouble or ""))
        assert supervised.status().in_force.gpus == (ONE,)
        assert mps.pid(root.pipe) == daemon
        supervised.want(OTHER)
        await supervised.serves(OTHER)
        assert supervised.status().trouble is None


async def test_garbage_at_the_start_ends_no_daemon(mps: FakeMps, root: MpsRoot, control: Control) -> None:
    """A daemon of an earlier run is left alone until it is known what is wanted."""
    earlier = await control.start([ONE.uuid])
    root.wanted.write_text("garbage")
    async with supervising(root) as supervised:
        await until(lambda: supervised.status().trouble)
        assert mps.processes() == [earlier.pid]
        supervised.want(ONE)
        await supervised.serves(ONE)
        assert mps.pid(root.pipe) == earlier.pid


async def test_modes_from_before_a_crash_are_put_back(mps: FakeMps, root: MpsRoot) -> None:
    """What a crashed run remembered counts, not what GPUs are now; if it is lost, the default is assumed."""
    modes = Modes()
    async with supervising(root, modes) as supervised:
        supervised.want(ONE, OTHER)
        await supervised.serves(ONE, OTHER)
        remembered = root.modes.read_bytes()
    for content in (remembered, b"garbage"):
        root.modes.write_bytes(content)
        for uuid in (ONE.uuid, OTHER.uuid):
            modes.modes[uuid] = ComputeMode.EXCLUSIVE_PROCESS
        async with supervising(root, modes) as supervised:
            await supervised.serves(ONE, OTHER)
        assert modes.exclusive == []
    assert mps.processes() == []


async def test_a_daemon_that_will_not_quit_is_ended(mps: FakeMps, root: MpsRoot) -> None:
    """The end comes also to a daemon that hangs, and modes are put back after it."""
    modes = Modes()
    async with supervising(root, modes, patience=2.0) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        os.kill(mps.pid(root.pipe), signal.SIGSTOP)
    assert mps.processes() == []
    assert modes.exclusive == []


async def test_the_clients_are_reported(mps: FakeMps, root: MpsRoot) -> None:
    """The status has the clients by the daemon's own answers, and a client that has left is no client any more."""
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        await until(lambda: supervised.status().clients == ())
        server = await to_thread(mps.start_server, root.pipe)
        for client in (4711, 4712):
            await to_thread(mps.connect, root.pipe, server, client)
        await until(
            lambda: (
                supervised.status().clients == tuple(ListedClient(pid=pid, server=str(server)) for pid in (4711, 4712))
            )
        )
        asked_at = supervised.status().clients_asked_at
        assert asked_at is not None
        await to_thread(mps.disconnect, root.pipe, server, 4711)
        await until(lambda: supervised.status().clients == (ListedClient(pid=4712, server=str(server)),))
        assert (supervised.status().clients_asked_at or 0) > asked_at


async def test_a_daemon_that_does_not_answer_has_unknown_clients(mps: FakeMps, root: MpsRoot) -> None:
    """Clients of a daemon that answers nothing are unknown, and not none."""
    async with supervising(root, patience=0.5) as supervised:
        supervised.want(ONE)
        await until(lambda: supervised.status().clients == ())
        silence = mps.fall_silent(root.pipe)
        await until(lambda: supervised.status().clients is None)
        silence.close()
        await until(lambda: supervised.status().clients == ())


async def test_a_client_under_changed_limits_is_doubtful(mps: FakeMps, root: MpsRoot) -> None:
    """A client that came while the limit of its server was lifted keeps a doubt; an earlier client has none."""
    async with supervising(root) as supervised:
        supervised.want(ONE)
        await supervised.serves(ONE)
        server = await to_thread(mps.start_server, root.pipe)
        await to_thread(mps.connect, root.pipe, server, 4711)
        await until(lambda: supervised.status().clients)
        await supervised.asks()  # and without a pause, or the limit could be set again, unseen, before the client comes
        with mps.prompt(root.pipe) as prompt:
            prompt.ask(f"set_device_pinned_mem_limit {server} 0 0M")
            prompt.ask(f"connect {server} 4712")
        await until(lambda: len(supervised.status().clients or ()) == 2)
        first, second = supervised.status().clients or ()
        assert (first.pid, first.doubt, second.pid) == (4711, None, 4712)
        assert f"set_device_pinned_mem_limit {server} 0 4096M" in (second.doubt or "")
        asked_at = supervised.status().clients_asked_at or 0
        await until(lambda: (supervised.status().clients_asked_at or 0) > asked_at)
        assert supervised.status().clients == (first, second)

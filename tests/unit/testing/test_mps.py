"""Tests of `gpushare_plugin.testing.mps`: it behaves as nvidia-cuda-mps-control of version 535 was seen to."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_plugin.testing.mps import FakeMps, FakeMpsError
from tests.unit.mps.supervised import control_daemon
from tests.waiting import PATIENCE, until_blocking

PROGRAM = "nvidia-cuda-mps-control"
TWO_GPUS = "GPU-00000000-0000-4000-8000-000000000000,GPU-00000001-0000-4000-8000-000000000001"


class Programs:
    """The programs, run as anybody would."""

    def __init__(self, fake: FakeMps, folder: Path) -> None:
        """Run them with directories in `folder`."""
        self.fake = fake
        self.pipe = folder / "pipe"
        self.log = folder / "log"
        self.pipe.mkdir()
        self.log.mkdir()

    def run(self, *arguments: str, text: str = "", patience: float = PATIENCE) -> tuple[int, str]:
        """Return how the control program ends, and what it prints."""
        variables = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log),
            "CUDA_VISIBLE_DEVICES": TWO_GPUS,
        }
        finished = subprocess.run(
            [shutil.which(PROGRAM, path=self.fake.environment["PATH"]) or PROGRAM, *arguments],
            input=text,
            env={**os.environ, **self.fake.environment, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=patience,
        )
        assert finished.stderr == ""
        return finished.returncode, finished.stdout

    def start(self) -> int:
        """Start the daemon, and return its process."""
        assert self.run("-d") == (0, "")
        return self.fake.pid(self.pipe)

    def ask(self, command: str) -> str:
        """Return the answer to a command."""
        status, answer = self.run(text=f"{command}\n")
        assert status == 0
        return answer.rstrip("\n")


@pytest.fixture
def programs(short_path: Path) -> Iterator[Programs]:
    """Make the programs."""
    with FakeMps() as fake:
        yield Programs(fake, short_path)


def test_a_command_without_a_daemon_fails(programs: Programs) -> None:
    """A command says that there is none, and fails."""
    assert programs.run(text="get_server_list\n") == (1, "Cannot find MPS control daemon process\n")


def test_a_daemon_runs_in_a_session_of_its_own(programs: Programs) -> None:
    """The socket, the process number and the log of the daemon are where they belong."""
    pid = programs.start()
    assert os.getsid(pid) == pid
    assert (programs.pipe / "control").is_socket()
    assert (programs.pipe / f"{PROGRAM}.pid").read_text() == f"{pid}\n"
    assert f"Control {pid:5}] Starting control daemon using socket {programs.pipe}/control" in log_of(programs)
    assert programs.ask("get_default_active_thread_percentage") == "100.0"
    assert f"Control {pid:5}] Cmd:get_default_active_thread_percentage" in log_of(programs)


def log_of(programs: Programs) -> str:
    """Return what the daemon wrote."""
    return (programs.log / "control.log").read_text()


def test_a_second_daemon_is_refused(programs: Programs) -> None:
    """One pipe directory has one daemon, also while it hangs; after a crash the next one starts over what is left."""
    first = programs.start()
    programs.fake.hang(programs.pipe)
    assert programs.run("-d") == (1, "An instance of this daemon is already running\n")
    programs.fake.crash(programs.pipe)
    assert (programs.pipe / "control").is_socket()
    assert programs.run(text="get_server_list\n")[0] == 1
    assert programs.start() != first


def test_an_old_version_takes_the_option_for_all_users_for_a_command(programs: Programs) -> None:
    """So version 535 does: no daemon starts, and the status says that there is none."""
    programs.fake.serve_one_user()
    assert programs.run("-multiuser-server", "-d") == (1, "Cannot find MPS control daemon process\n")
    assert programs.run("-d") == (0, "")


def test_a_daemon_without_a_pipe_directory_does_not_start(programs: Programs) -> None:
    """Without its pipe directory there is no daemon."""
    programs.pipe.rmdir()
    assert programs.run("-d") == (1, f"Cannot access CUDA_MPS_PIPE_DIRECTORY={programs.pipe}\n")


def test_commands_are_answered_as_the_real_daemon_answers(programs: Programs) -> None:
    """Commands are answered as they were seen to be, mistakes included: most are passed over in silence."""
    programs.start()
    for command, answer in (
        ("get_server_list", ""),
        ("set_default_active_thread_percentage 50", "50.0"),
        ("set_default_active_thread_percentage 500", "50.0"),
        ("get_default_active_thread_percentage", "50.0"),
        ("get_default_device_pinned_mem_limit 0", ""),
        ("set_default_device_pinned_mem_limit 0 1024M", ""),
        ("get_default_device_pinned_mem_limit 0", "1G"),
        ("set_default_device_pinned_mem_limit 0 1500M", ""),
        ("get_default_device_pinned_mem_limit 0", "1G"),
        ("set_default_device_pinned_mem_limit 0 500M", ""),
        ("get_default_device_pinned_mem_limit 0", "500M"),
        ("set_default_device_pinned_mem_limit 1 2G", ""),
        ("get_default_device_pinned_mem_limit 1", "2G"),
        ("set_default_device_pinned_mem_limit 0 0M", ""),
        ("get_default_device_pinned_mem_limit 0", ""),
        ("get_client_list 123", "Server 123 not found"),
        ("set_device_pinned_mem_limit 123 0 5M", "Server 123 not found"),
        ("set_active_thread_percentage 123 5", "Server 123 not found"),
        ("nonsense", 'Unknown command "nonsense"'),
    ):
        assert (command, programs.ask(command)) == (command, answer)
    assert programs.run(text="nonsense\nget_default_active_thread_percentage") == (
        0,
        'Unknown command "nonsense"\n50.0\n',
    )


def test_a_daemon_that_hangs_answers_nobody(programs: Programs) -> None:
    """A command waits for ever, as it does for the real one; the daemon is none the worse for it."""
    pid = programs.start()
    programs.fake.hang(programs.pipe)
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run(text="get_server_list\n", patience=1.0)
    os.kill(pid, signal.SIGCONT)
    assert programs.ask("get_default_active_thread_percentage") == "100.0"


def test_a_connection_that_says_nothing_silences_the_daemon(programs: Programs) -> None:
    """It serves one connection after the other, without a time-out; once that one has gone, all goes on."""
    programs.start()
    with programs.fake.fall_silent(programs.pipe), pytest.raises(subprocess.TimeoutExpired):
        programs.run(text="get_server_list\n", patience=1.0)
    assert programs.ask("get_default_active_thread_percentage") == "100.0"
    assert "Accepting connection..." in log_of(programs)


def test_an_open_prompt_turns_others_away(programs: Programs) -> None:
    """While one has commands to give, others get no answer, and a status as if all were well."""
    programs.start()
    with programs.fake.prompt(programs.pipe) as prompt:
        assert prompt.ask("get_default_active_thread_percentage") == (0, "100.0")
        assert programs.run(text="get_default_active_thread_percentage\n") == (0, "")
        assert programs.run(text="nonsense\n") == (0, "")
        assert prompt.ask("set_default_active_thread_percentage 50") == (0, "50.0")
    assert programs.fake.ask(programs.pipe, "get_default_active_thread_percentage") == "50.0"


def test_junk_on_a_connection_is_logged(programs: Programs) -> None:
    """Each line that is no command costs two lines of the log, and a connection that begins with junk is closed."""
    programs.start()
    programs.run(text="junk 1\njunk 2\n")
    lines = [line.partition("] ")[2] for line in log_of(programs).splitlines()]
    assert lines[-6:-1] == ["NEW UI", "Cmd:junk 1", 'Unknown command "junk"', "Cmd:junk 2", 'Unknown command "junk"']
    with programs.fake.fall_silent(programs.pipe) as connection:
        connection.sendall(b"junk")
        assert connection.recv(1) == b""
    assert "User did not send valid credentials" in log_of(programs)


def test_servers_have_limits_and_clients(programs: Programs) -> None:
    """A server begins with the defaults, and keeps what it has when they change; clients come and go."""
    programs.start()
    fake, pipe = programs.fake, programs.pipe
    programs.ask("set_default_device_pinned_mem_limit 0 3G")
    server = fake.start_server(pipe, user=1000)
    programs.ask("set_default_device_pinned_mem_limit 0 4G")
    assert programs.ask("get_server_list") == str(server)
    assert programs.ask(f"get_device_pinned_mem_limit {server} 0") == "3G"
    assert programs.ask(f"set_device_pinned_mem_limit {server} 0 900M") == ""
    assert programs.ask(f"get_device_pinned_mem_limit {server} 0") == "900M"
    assert programs.ask(f"set_active_thread_percentage {server} 10") == "10.0"
    assert programs.ask(f"get_active_thread_percentage {server}") == "10.0"
    fake.connect(pipe, server, 4711)
    fake.connect(pipe, server, 4712)
    assert programs.ask(f"get_client_list {server}") == "4711\n4712"
    fake.disconnect(pipe, server, 4711)
    assert programs.ask(f"get_client_list {server}") == "4712"
    os.kill(server, signal.SIGKILL)
    assert programs.ask("get_server_list") == ""


def test_quitting_waits_for_clients(programs: Programs) -> None:
    """It waits until they are gone, as long as it may; the status tells whether they went by themselves."""
    programs.start()
    assert programs.run(text="quit\n") == (0, "")
    until_blocking(lambda: not programs.fake.processes(), programs.fake.processes)
    with pytest.raises(FakeMpsError):
        programs.fake.pid(programs.pipe)
    programs.start()
    programs.fake.connect(programs.pipe, programs.fake.start_server(programs.pipe), 4711)
    assert programs.run(text="quit -t 0.2\n") == (1, "")
    until_blocking(lambda: not programs.fake.processes(), programs.fake.processes)


def test_starts_fail_and_commands_are_passed_over_on_request(programs: Programs) -> None:
    """Tests can have that for as long as they want."""
    programs.fake.refuse_to_start("No luck")
    assert programs.run("-d") == (1, "No luck\n")
    programs.fake.refuse_to_start(None)
    programs.start()
    programs.fake.ignore("set_default_active_thread_percentage")
    assert programs.ask("set_default_active_thread_percentage 50") == ""
    programs.fake.ignore(None)
    assert programs.ask("get_default_active_thread_percentage") == "100.0"


def test_a_command_imports_only_what_it_needs() -> None:
    """Hundreds of them run in tests: what keeps a daemon is for `-d` alone."""
    show = "import sys, gpushare_plugin.testing.mps_programs.program; print(*sorted(sys.modules))"
    imported = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True).stdout.split()
    ours = {name.rpartition(".")[2] for name in imported if name.startswith("gpushare_plugin.testing.")}
    assert ours == {"mps_programs", "program", "wire"}


def test_processes_do_not_outlive_their_test(programs: Programs) -> None:
    """Processes end when the pipe directory goes, and those that hang when the stand-in is closed."""
    programs.start()
    programs.fake.start_server(programs.pipe)
    shutil.rmtree(programs.pipe)
    until_blocking(lambda: not programs.fake.processes(), programs.fake.processes)
    programs.pipe.mkdir()
    programs.start()
    programs.fake.hang(programs.pipe)
    programs.fake.close()
    until_blocking(lambda: control_daemon(programs.pipe) is None)

"""Tests of `gpushare_plugin.testing.mps` with protocol 3: it behaves as NVIDIA's documents say (see `daemon3`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare_plugin.testing.mps import FakeClient, FakeMps
from tests.unit.testing.test_mps import TWO_GPUS, Programs
from tests.waiting import until_blocking

FIRST, SECOND = TWO_GPUS.split(",")


class Namespaces(Programs):
    """The programs with a daemon that speaks protocol 3, and a server."""

    def start(self) -> int:
        """Start the daemon, and return its process."""
        assert self.run("-m", "-d", "-p", "3") == (0, "")
        return self.fake.pid(self.pipe)

    def tell(self, command: str) -> str:
        """Return the answer to a command on the command line."""
        status, answer = self.run(*command.split())
        assert status == 0, answer
        return answer.rstrip("\n")

    def refuse(self, command: str) -> str:
        """Return why a command is refused."""
        status, answer = self.run(*command.split())
        assert status == 1
        return answer.rstrip("\n")

    def program(self, directory: str, **environment: str) -> FakeClient:
        """Run a program on both GPUs that connects through a directory below that of the pipes."""
        pipe = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe / directory), "NVIDIA_VISIBLE_DEVICES": TWO_GPUS}
        return self.fake.program({**pipe, **environment})


@pytest.fixture
def programs(short_path: Path) -> Iterator[Namespaces]:
    """Start a daemon with a server `gpus` that has a namespace `small` of 3000 MiB and 30 %."""
    with FakeMps() as fake:
        programs = Namespaces(fake, short_path)
        programs.start()
        programs.tell("server create gpus")
        programs.tell("namespace create small --server=gpus")
        programs.tell("namespace set small --server=gpus --pinned-memory-limit=3000M --active-thread-percentage=30")
        yield programs


def test_lists_are_tables_or_values_with_commas(programs: Namespaces) -> None:
    """With or without the names of columns; a single field is told alone."""
    listed = programs.tell("namespace list --server=gpus --format=csv,noheader").splitlines()
    assert listed == [
        f"default,gpus,Ready,-,-,0,{programs.pipe}/gpus/default",
        f"small,gpus,Ready,3000M,30.00,0,{programs.pipe}/gpus/small",
    ]
    assert programs.tell("namespace list small --server=gpus").split()[:3] == ["NAME", "SERVER", "SERVER-STATUS"]
    assert programs.tell("namespace get small gpus pinned-memory-limit") == "3000M"
    (server,) = programs.tell("server list --format=csv,noheader").splitlines()
    assert server.split(",")[::3] == ["gpus", "Ready", "-"]
    assert len(programs.tell("feature describe --format=csv,noheader").splitlines()) == 2


def test_the_socket_says_which_namespace(programs: Namespaces) -> None:
    """A program has the limits of a namespace, or of a server's default one, by its socket; without a socket, none."""
    programs.tell("server set gpus --pinned-memory-limit=1G --active-thread-percentage=50")
    programs.tell("namespace create free --server=gpus")
    for directory, memory, threads in (
        ("gpus/small", 3000, 30),
        ("gpus", 1024, 50),
        ("gpus/default", 1024, 50),
        ("gpus/free", None, 100),  # a namespace inherits nothing
    ):
        with programs.program(directory) as program:
            assert program.effective is not None
            assert (program.memory_mib, program.effective["threads"]) == ([memory, memory], threads)
    with programs.program("gpus/nobody") as program:
        assert program.effective is None


@pytest.mark.parametrize(
    ("environment", "memory"),
    [
        ({}, [3000, 3000]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [3000]),
        ({"CUDA_VISIBLE_DEVICES": SECOND}, [3000]),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=20G"}, [1024, 3000]),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{SECOND}=512M"}, [3000, 512]),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,2=1G"}, [None, None]),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=1G", "CUDA_VISIBLE_DEVICES": "0"}, [None]),
        ({"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{FIRST}=1G", "CUDA_VISIBLE_DEVICES": "1"}, [None]),
    ],
)
def test_a_program_tightens_its_limits_or_lifts_all(
    programs: Namespaces, environment: dict[str, str], memory: list[int | None]
) -> None:
    """A list that names a GPU that the program does not see lifts the limits of memory, and not that of threads."""
    with programs.program("gpus/small", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="90", **environment) as program:
        assert program.effective is not None
        assert (program.memory_mib, program.effective["threads"]) == (memory, 30)


def test_a_list_of_limits_does_the_same_with_protocol_2(short_path: Path) -> None:
    """The escape: a worker that narrows its GPUs, as workers of tensor-parallel programs do, loses its limits."""
    with FakeMps() as fake:
        programs = Programs(fake, short_path)
        programs.start()
        programs.ask("set_default_device_pinned_mem_limit 0 2G")
        given = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=1G", "CUDA_MPS_PIPE_DIRECTORY": str(programs.pipe)}
        given |= {"NVIDIA_VISIBLE_DEVICES": TWO_GPUS}
        with fake.program(given) as wide, fake.program({**given, "CUDA_VISIBLE_DEVICES": "0"}) as narrow:
            assert wide.memory_mib == [1024, 1024]
            assert narrow.memory_mib == [None]
            server = programs.ask("get_server_list")
            assert programs.ask(f"get_client_list {server}").split() == [str(wide.pid), str(narrow.pid)]
        with fake.program({name: given[name] for name in given if "LIMIT" not in name}) as limited:
            assert limited.memory_mib == [2048, None]


def test_clients_are_told_by_namespace(programs: Namespaces) -> None:
    """A program on two GPUs has two lines; what it set itself is told by nothing."""
    with programs.program("gpus/small", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="7=1G") as program:
        assert programs.tell("client list --server=gpus --format=csv,noheader").splitlines() == [
            f"{program.pid},gpus,{ordinal},small,python client.py" for ordinal in range(2)
        ]
        assert programs.tell(f"client get {program.pid} maws-ns") == "small"
        assert "unknown field" in programs.refuse(f"client get {program.pid} pinned-memory-limit")
        assert "has active clients" in programs.refuse("namespace delete small --server=gpus")
        assert "has active clients" in programs.refuse("server delete gpus")
    assert programs.tell("client list --all --format=csv,noheader") == ""
    programs.tell("namespace delete small --server=gpus")
    assert not (programs.pipe / "gpus/small").exists()
    programs.tell("server delete gpus --force")
    assert programs.tell("server list --format=csv,noheader") == ""


@pytest.mark.parametrize(
    "command",
    [
        "server create Upper",
        "server create gpus",
        f"server create {'x' * 65}",
        "namespace create small --server=nobody",
        "namespace create small --server=gpus",
        "namespace create some --server=gpus --colour=red",
        "namespace set small --server=gpus",
        "namespace set small --server=gpus --active-thread-percentage=0",
        "namespace set small --server=gpus --pinned-memory-limit=lots",
        "namespace set small --server=gpus --limit=4G",
        "namespace list --server=gpus --format=xml",
        "client get 1 maws-ns",
        "get_server_list",
        "server",
    ],
)
def test_what_makes_no_sense_is_refused(programs: Namespaces, command: str) -> None:
    """Unknown names, keys and values change nothing."""
    before = programs.tell("namespace list")
    assert programs.refuse(command).startswith("error: ")
    assert programs.tell("namespace list") == before


def test_a_server_without_its_gpu_ends_at_once(programs: Namespaces) -> None:
    """Nothing refuses it: it is not in the list, as any server that has ended."""
    programs.tell("server create other --allowed-devices=GPU-elsewhere")
    assert [line.partition(",")[0] for line in programs.tell("server list --format=csv,noheader").splitlines()] == [
        "gpus"
    ]


def test_the_end_is_an_option(programs: Namespaces) -> None:
    """All servers end with the daemon; their sockets are gone."""
    assert programs.run("-q") == (0, "")
    until_blocking(lambda: programs.fake.processes() == [])
    assert not (programs.pipe / "gpus").exists()


def test_an_older_version_takes_the_options_for_a_command(short_path: Path) -> None:
    """A version without protocol 3 does not start."""
    with FakeMps() as fake:
        fake.know_protocol_2_only()
        assert Programs(fake, short_path).run("-d", "-p", "3")[0] == 1

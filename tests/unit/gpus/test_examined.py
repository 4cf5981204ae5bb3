"""Tests of `gpushare_plugin.gpus.examined`, on processes that really run."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpushare_plugin.core.in_effect import ProcessFacts
from gpushare_plugin.core.usage import Owner, Process
from gpushare_plugin.gpus import containers, examined
from gpushare_plugin.gpus.examined import Examiner
from tests.namespaces import unshared
from tests.shown import ShownProcesses

OWNER = Owner("7b0f9c3a-1b2c-4d5e-8f90-123456789abc", "0123456789abcdef" * 4)
LIST = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
GIVEN = {LIST: "0=4096M", "CUDA_VISIBLE_DEVICES": "0"}


def looked(shown: ShownProcesses, pid: int, owner: Owner = OWNER, *, library: bool = False) -> ProcessFacts | None:
    """Return the facts of a new look about one process."""
    process = Process(pid, owner=owner)
    return Examiner(shown.procfs).examine([(process, library)], containers.now()).get(pid)


def test_the_environment_of_a_process_is_read(shown: ShownProcesses) -> None:
    """The variables that matter are known as they are, the first of a name, and no others are kept."""
    pid = shown.start(OWNER, {**GIVEN, "PASSWORD": "secret", "CUDA_MPS_EMPTY": ""})
    assert looked(shown, pid) == ProcessFacts(pid, {**GIVEN, "CUDA_MPS_EMPTY": ""})


def test_a_mapped_library_is_found(shown: ShownProcesses, tmp_path: Path) -> None:
    """HAMi's library is known by its name among the mapped files; it is only looked for where that is asked."""
    library, other = tmp_path / "libvgpu.so", tmp_path / "libvgpu.so.other"
    found = []
    for file in (library, other):
        file.write_bytes(b"library")
        pid = shown.start(OWNER, GIVEN, mapped=file)
        found.append([(looked(shown, pid, library=asked) or ProcessFacts(0)).library for asked in (True, False)])
    assert found == [[True, None], [False, None]]


def test_a_process_of_another_container_is_left_out(shown: ShownProcesses) -> None:
    """A number that is another process by now, one that ended, or a simulated one says nothing."""
    pid = shown.start(OWNER, GIVEN)
    assert looked(shown, pid, Owner(OWNER.pod_uid, "f" * 64)) is None
    assert looked(shown, pid, Owner(pod="default/simulated")) is None
    process = Process(pid, owner=OWNER)
    assert Examiner(shown.procfs).examine([(process, False)], seen_at=1.0) == {}
    shown.end()
    assert looked(shown, pid) is None


def test_an_environment_that_is_too_long_is_not_read(shown: ShownProcesses) -> None:
    """A tenant decides how much there is to read: beyond a bound it is unknown, with words."""
    filled = {f"FILLER_{number}": "x" * 100_000 for number in range(11)}
    pid = shown.start(OWNER, {**filled, **GIVEN})
    facts = looked(shown, pid)
    assert facts is not None
    assert (facts.environment, facts.unread) == (
        None,
        f"has more than {examined.MOST_ENVIRONMENT} bytes in /proc/PID/environ, which are not read",
    )


def test_what_was_read_of_a_process_is_kept(shown: ShownProcesses) -> None:
    """A program that overwrites its environment later, as programs with a title do, is known as it began."""
    pid = shown.start(OWNER, GIVEN)
    examiner, process = Examiner(shown.procfs), Process(pid, owner=OWNER)
    assert examiner.examine([(process, False)], containers.now())[pid].environment == GIVEN
    environ = shown.procfs / str(pid) / "environ"
    environ.unlink()
    environ.write_bytes(b"a title\0\0\0")
    assert examiner.examine([(process, False)], containers.now())[pid].environment == GIVEN
    assert examiner.examine([], containers.now()) == {}
    assert examiner.examine([(process, False)], containers.now())[pid].environment == {}


def shown_crowd(shown: ShownProcesses, count: int, environment: bytes) -> list[tuple[Process, bool]]:
    """Show so many processes with the same environment, numbered from 1."""
    for pid in range(1, count + 1):
        (folder := shown.procfs / str(pid)).mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (python) S " + " ".join(["1"] * 18) + " 5 2 3\n")
        (folder / "cgroup").write_text(f"0::/kubepods/pod{OWNER.pod_uid}/{OWNER.container_id}\n")
        (folder / "environ").write_bytes(environment)
    return [(Process(pid, owner=OWNER), False) for pid in range(1, count + 1)]


@pytest.mark.parametrize("environment", [f"{LIST}=0=1G".encode(), b""])
def test_only_so_many_processes_are_read_at_a_look(shown: ShownProcesses, environment: bytes) -> None:
    """A crowd of processes takes several looks, whatever they show; those that wait say so."""
    crowd = shown_crowd(shown, examined.MOST_EXAMINED + 2, environment)
    examiner = Examiner(shown.procfs)
    waiting = [
        sum("has not been looked at yet" in each.unread for each in examiner.examine(crowd, 1000.0).values())
        for _ in range(3)
    ]
    assert waiting == [2, 0, 0]


def test_a_crowd_that_is_read_again_and_again_takes_turns(shown: ShownProcesses) -> None:
    """Processes without watched variables are read again, first those that were not read the longest."""
    crowd = shown_crowd(shown, examined.MOST_EXAMINED + 2, b"")
    examiner = Examiner(shown.procfs)
    for _ in range(3):
        examiner.examine(crowd, 1000.0)
    for process, _ in crowd:
        (shown.procfs / str(process.pid) / "environ").write_bytes(f"{LIST}=0=1G".encode())
    found = examiner.examine(crowd, 1000.0).values()
    assert {each.pid for each in found if not each.environment} == {examined.MOST_EXAMINED - 1, examined.MOST_EXAMINED}


def test_a_value_that_is_too_long_is_not_known(shown: ShownProcesses) -> None:
    """A limit can be lifted at the end of a value: no part of a value is taken for the whole."""
    pid = shown.start(OWNER, {LIST: f"{'0=1G,' * 300}1=1G"})
    facts = looked(shown, pid)
    assert facts is not None
    assert (facts.environment, facts.unread) == (
        None,
        f"has more than 1024 bytes in the variable {LIST}, which are not read",
    )


_ELSEWHERE = """
import sys
from pathlib import Path
from gpushare_plugin.core.usage import Owner, Process
from gpushare_plugin.gpus import containers
from gpushare_plugin.gpus.examined import Examiner
procfs, pid, *owner = sys.argv[1:]
process = Process(int(pid), owner=Owner(*owner))
print(Examiner(Path(procfs)).examine([(process, True)], containers.now())[int(pid)].unread)
"""


def test_a_process_that_must_not_be_examined_says_what_is_missing(shown: ShownProcesses) -> None:
    """Without the right to trace a process, its environment is unknown, with the value of the chart that gives it."""
    pid = shown.start(OWNER, GIVEN)
    arguments = (sys.executable, "-c", _ELSEWHERE, shown.procfs, pid, OWNER.pod_uid, OWNER.container_id)
    said = subprocess.run([*unshared(), *map(str, arguments)], capture_output=True, check=True, text=True).stdout
    assert said.startswith("must not be examined by gpushare: usage.readProcesses of the chart allows that")

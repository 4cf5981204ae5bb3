"""What the kernel shows of a process beyond its container: the environment with which it began, and mapped files.

Facts: proc_pid_environ(5), proc_pid_maps(5). Reading takes the right to trace the process (PTRACE_MODE_READ in
ptrace(2)): for processes with capabilities that this process does not have, as root in a container has, the capability
SYS_PTRACE. A program may overwrite its environment, as programs do that change their title, but rarely before it uses
a GPU. What was read once of a process is therefore kept.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from gpushare_plugin.core.escapes import is_watched
from gpushare_plugin.core.in_effect import ProcessFacts
from gpushare_plugin.core.usage import Process
from gpushare_plugin.gpus.containers import HostProcess, look_up

LIBRARY = "libvgpu.so"
"""The file name of HAMi's library."""

MOST_EXAMINED = 256
"""The most processes read at a look; the others follow at the next looks."""
MOST_ENVIRONMENT = 1 << 20
"""The most bytes of an environment that is read."""
MOST_MAPS = 8 << 20
"""The most bytes of a list of mapped files: some 65,000 files, which is as many as the kernel allows by default."""
_LONGEST_NAME = 128
"""The most bytes of a watched name."""
_LONGEST_VALUE = 1024
"""The most bytes kept of a value; the values that containers are given are shorter."""

_REMEDY = "usage.readProcesses of the chart allows that (hostPID and the capability SYS_PTRACE)"
_WAITS = "has not been looked at yet, because many processes use GPUs"


class Examiner:
    """Reads the facts about processes; remembers the facts of processes that still use a GPU."""

    def __init__(self, procfs: Path) -> None:
        """Look for the processes in `procfs`."""
        self._procfs = procfs
        self._known: dict[tuple[int, float, bool], ProcessFacts] = {}

    def examine(self, processes: Iterable[tuple[Process, bool]], seen_at: float) -> Mapping[int, ProcessFacts]:
        """Return the facts about processes by number; a process with True also has its mapped files read.

        Processes that ended, or began after `seen_at` (a value of `containers.now`), are left out, as are simulated
        processes.
        """
        found: dict[int, ProcessFacts] = {}
        known, self._known, budget = self._known, {}, MOST_EXAMINED
        for process, with_library in processes:
            host = look_up([process.pid], seen_at, self._procfs).get(process.pid)
            if host is None or host.owner != process.owner:
                continue
            key = process.pid, host.began, with_library
            facts = known.get(key)
            if facts is None:
                if not budget:
                    found[process.pid] = ProcessFacts(process.pid, unread=_WAITS)
                    continue
                budget -= 1
                facts = self._read(process.pid, host, seen_at, with_library=with_library)
            if facts is not None:
                found[process.pid] = facts
                if facts.environment:
                    self._known[key] = facts
        return found

    def _read(self, pid: int, host: HostProcess, seen_at: float, *, with_library: bool) -> ProcessFacts | None:
        """Return the facts about a process; None if the process has ended, and another one may have got its number."""
        folder = self._procfs / str(pid)
        try:
            environment = _variables(_content(folder / "environ", MOST_ENVIRONMENT))
            library = _has_library(_content(folder / "maps", MOST_MAPS)) if with_library else None
            facts = ProcessFacts(pid, environment, library=library)
        except PermissionError:
            facts = ProcessFacts(pid, unread=f"must not be examined by gpushare: {_REMEDY}")
        except ValueError as error:
            facts = ProcessFacts(pid, unread=str(error))
        except OSError:
            return None
        again = look_up([pid], seen_at, self._procfs).get(pid)
        return facts if again is not None and again.began == host.began else None


def _content(file: Path, most: int) -> bytes:
    """Return the content of a file of procfs; raises OSError, and ValueError for more than `most` bytes."""
    with file.open("rb") as stream:
        content = stream.read(most + 1)
    if len(content) > most:
        raise ValueError(f"has more than {most} bytes in /proc/PID/{file.name}, which are not read")
    return content


def _variables(environment: bytes) -> Mapping[str, str]:
    """Return the watched variables; of a name that is there more than once the first, as getenv(3) finds it."""
    found: dict[str, str] = {}
    for entry in environment.split(b"\0"):
        name, is_variable, value = entry.partition(b"=")
        if is_variable and len(name) <= _LONGEST_NAME and is_watched(key := name.decode("ascii", "replace")):
            found.setdefault(key, value[:_LONGEST_VALUE].decode("utf-8", "replace"))
    return found


def _has_library(maps: bytes) -> bool:
    """Return whether a list of mapped files has HAMi's library, by its file name alone."""
    return f"/{LIBRARY}\n".encode() in maps

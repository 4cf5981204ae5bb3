"""What the kernel shows of a process beyond its container: the environment with which it began, and mapped files.

Facts: proc_pid_environ(5), proc_pid_maps(5). Reading takes the right to trace the process (PTRACE_MODE_READ in
ptrace(2)): for processes with capabilities that this process does not have, as root in a container has, the capability
SYS_PTRACE. A program may overwrite its environment, as programs do that change their title, but rarely before it uses
a GPU. What was read once of a process is therefore kept.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.escapes import is_watched
from gpushare_plugin.core.in_effect import ProcessFacts
from gpushare_plugin.core.usage import Process
from gpushare_plugin.gpus.containers import HostProcess, look_up

LIBRARY = "libvgpu.so"
"""The file name of HAMi's library."""

MOST_EXAMINED = 256
"""The most processes read at a look; the others follow at the next looks, first those that wait the longest."""
MOST_ENVIRONMENT = 1 << 20
"""The most bytes of an environment that is read."""
MOST_MAPS = 8 << 20
"""The most bytes of a list of mapped files: some 65,000 files, which is as many as the kernel allows by default."""
_LONGEST_NAME = 128
"""The most bytes of a watched name."""
_LONGEST_VALUE = 1024
"""The most bytes of a value; the values that containers are given are shorter."""

_Key = tuple[int, float, bool]
"""A process: its number, when it began, and whether its mapped files are read."""

_REMEDY = "usage.readProcesses of the chart allows that (hostPID and the capability SYS_PTRACE)"
_WAITS = "has not been looked at yet, because many processes use GPUs"


class _Examined(Struct, frozen=True):
    """The last look at a process."""

    facts: ProcessFacts
    """The facts."""
    look: int
    """The number of the look."""

    @property
    def settled(self) -> bool:
        """Whether the facts stay; a process without watched variables, or one that cannot be read, is read again."""
        return bool(self.facts.environment)


class Examiner:
    """Reads the facts about processes; remembers the facts of processes that still use a GPU."""

    def __init__(self, procfs: Path) -> None:
        """Look for the processes in `procfs`."""
        self._procfs = procfs
        self._look = 0
        self._known: dict[_Key, _Examined] = {}

    def examine(self, processes: Iterable[tuple[Process, bool]], seen_at: float) -> Mapping[int, ProcessFacts]:
        """Return the facts about processes by number; a process with True also has its mapped files read.

        Processes that ended, or began after `seen_at` (a value of `containers.now`), are left out, as are simulated
        processes.
        """
        hosts = dict(self._living(processes, seen_at))
        known = self._known = {key: each for key, each in self._known.items() if key in hosts}
        self._look += 1
        unsettled = [key for key in hosts if key not in known or not known[key].settled]
        for key in sorted(unsettled, key=lambda key: known[key].look if key in known else 0)[:MOST_EXAMINED]:
            pid, _, with_library = key
            if (facts := self._read(pid, hosts[key], seen_at, with_library=with_library)) is not None:
                known[key] = _Examined(facts, self._look)
            else:
                del hosts[key]
                known.pop(key, None)
        return {key[0]: known[key].facts if key in known else ProcessFacts(key[0], unread=_WAITS) for key in hosts}

    def _living(self, processes: Iterable[tuple[Process, bool]], seen_at: float) -> Iterator[tuple[_Key, HostProcess]]:
        for process, with_library in processes:
            host = look_up([process.pid], seen_at, self._procfs).get(process.pid)
            if host is not None and host.owner == process.owner:
                yield (process.pid, host.began, with_library), host

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
    """Return the watched variables; of a name that is there more than once the first, as getenv(3) finds it.

    Raises ValueError for a longer value than is read: what was cut off could lift a limit.
    """
    found: dict[str, str] = {}
    for entry in environment.split(b"\0"):
        name, is_variable, value = entry.partition(b"=")
        if is_variable and len(name) <= _LONGEST_NAME and is_watched(key := name.decode("ascii", "replace")):
            if key not in found and len(value) > _LONGEST_VALUE:
                raise ValueError(f"has more than {_LONGEST_VALUE} bytes in the variable {key}, which are not read")
            found.setdefault(key, value.decode("utf-8", "replace"))
    return found


def _has_library(maps: bytes) -> bool:
    """Return whether a list of mapped files has HAMi's library, by its file name alone."""
    return f"/{LIBRARY}\n".encode() in maps

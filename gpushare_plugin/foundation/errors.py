"""The errors gpushare raises on purpose; each message says what was found, what was expected and what to do."""

from collections.abc import Sequence

from gpushare_plugin.foundation.structs import Struct

Path = tuple[str | int, ...]
"""Where a value stands in the settings, such as `("sharing", "memory", "resources", 0, "unit")`."""


MOST_PROBLEMS = 100
"""Mistakes that are told at once: whoever has made more has most likely made one many times."""


class GpushareError(Exception):
    """Base of every error gpushare raises on purpose."""


class NoGpuLibraryError(GpushareError):
    """NVML cannot be loaded or initialised: no driver on this node, or none that this process can see."""


class DriverChangedError(NoGpuLibraryError):
    """The driver is another than the one whose library this process has loaded; only a new process can use it."""


class UnresponsiveGpusError(NoGpuLibraryError):
    """There are GPUs, and all of them are unresponsive."""


class Problem(Struct, frozen=True):
    """One thing wrong with the settings.

    `path` says where, `message` what was found, what is allowed and, where it is known, the nearest right value.
    """

    path: Path
    message: str


class ConfigError(GpushareError):
    """The config cannot be used; `lines` holds every problem, each with its place, ready to print.

    `what` is the file that is wrong, where it is another than the config.
    """

    def __init__(self, lines: Sequence[str], what: str = "the config") -> None:
        """Keep `lines`, one readable line a problem."""
        self.lines = tuple(lines)
        self.what = what
        super().__init__("\n".join(self.lines))


class PlacementError(GpushareError):
    """No set of units can satisfy a request; the message names the request, what is free and what would fit."""


class RequestError(GpushareError):
    """The kubelet, or somebody in its place, asked for something that makes no sense."""


class EvictionError(GpushareError):
    """A pod was not evicted; the message says why, and `retry_after` in how many seconds it may be tried again."""

    def __init__(self, message: str, retry_after: float) -> None:
        """Keep why, and when to try again."""
        super().__init__(message)
        self.retry_after = retry_after

"""The errors that gpushare raises on purpose; a message names the finding, the expectation and the remedy."""

from collections.abc import Sequence

from gpushare_plugin.base.structs import Struct

Path = tuple[str | int, ...]
"""The place of a value in the settings, for example `("sharing", "memory", "resources", 0, "unit")`."""


MOST_PROBLEMS = 100
"""The most mistakes that are told at once: more mistakes are most likely one mistake, made many times."""


class GpushareError(Exception):
    """Base of every error that gpushare raises on purpose."""


class NoGpuLibraryError(GpushareError):
    """NVML cannot be loaded or initialised: the node has no driver, or the process cannot see the driver."""


class DriverChangedError(NoGpuLibraryError):
    """The driver changed after the process had loaded NVML's library; only a new process can use the new driver."""


class UnresponsiveGpusError(NoGpuLibraryError):
    """The node has GPUs, and all of them are unresponsive."""


class Problem(Struct, frozen=True):
    """One mistake in the settings."""

    path: Path
    """The place of the mistake."""
    message: str
    """The value found, the allowed values and, where known, the nearest allowed value."""


class ConfigError(GpushareError):
    """The config cannot be used.

    `lines` holds every mistake with its place, ready to print. `what` names the file with the mistakes, `the config`
    by default.
    """

    def __init__(self, lines: Sequence[str], what: str = "the config") -> None:
        """Keep `lines`, one readable line for each mistake."""
        self.lines = tuple(lines)
        self.what = what
        super().__init__("\n".join(self.lines))


class PlacementError(GpushareError):
    """No set of units can meet a request; the message names the request, the free units and a size that would fit."""


class RequestError(GpushareError):
    """The kubelet, or a program in the place of the kubelet, sent a request without sense."""


class EvictionError(GpushareError):
    """A pod was not evicted; the message says why, and `retry_after` gives the seconds until the next attempt."""

    def __init__(self, message: str, retry_after: float) -> None:
        """Keep the reason, and the seconds until the next attempt."""
        super().__init__(message)
        self.retry_after = retry_after

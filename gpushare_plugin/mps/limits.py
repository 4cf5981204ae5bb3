"""The limits of an MPS control daemon and of MPS servers: how a limit is set and read (version 535)."""

import re
from collections.abc import Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.mps.exchange import MpsSettings

_ALL_THREADS = 100
_MIB = {"M": 1, "G": 1024}


class MpsLimit(Struct, frozen=True):
    """A limit of an MPS control daemon or of an MPS server."""

    name: str
    """The name of the limit in commands, such as `device_pinned_mem_limit`."""
    device: int | None
    """The number of the GPU in the daemon's order; None for a limit without a GPU."""
    value: str
    """The value in commands, such as `4096M`."""

    def command(self, server: int | None) -> str:
        """Return the command that sets the limit in `server`, or the default for new servers if `server` is None."""
        return " ".join((*self._words("set", server), self.value))

    def question(self, server: int | None) -> str:
        """Return the command that reads the limit of `server`, or the default for new servers if `server` is None."""
        return " ".join(self._words("get", server))

    def is_set_by(self, answer: str) -> bool:
        """Return whether `answer` agrees with the value of the limit, within the precision of answers."""
        if answer.startswith("Server "):  # … not found: the server has ended meanwhile
            return True
        if self.device is None:
            return _number(answer) == float(self.value)
        desired = int(self.value[:-1])
        amount = re.fullmatch(r"(\d+)([MG])", answer)
        if amount is None or not desired:
            # 0 removes a limit. If another version reports amounts in another form, any amount is accepted.
            return bool(answer) == bool(desired)
        unit = _MIB[amount[2]]
        return desired // unit == int(amount[1])

    def _words(self, verb: str, server: int | None) -> list[str]:
        which = [f"{verb}_default_{self.name}"] if server is None else [f"{verb}_{self.name}", str(server)]
        return which if self.device is None else [*which, str(self.device)]


def limits_of(devices: Sequence[str], settings: MpsSettings) -> list[MpsLimit]:
    """Return the limits of `settings` for a daemon with `devices`; a GPU that only one of them names has no limit."""
    threads = MpsLimit("active_thread_percentage", None, str(settings.active_thread_percentage or _ALL_THREADS))
    memory = (
        MpsLimit("device_pinned_mem_limit", devices.index(gpu.uuid), f"{gpu.memory_limit_mib or 0}M")
        for gpu in settings.gpus
        if gpu.uuid in devices
    )
    return [threads, *memory]


def _number(answer: str) -> float | None:
    try:
        return float(answer)
    except ValueError:
        return None

"""The plugin's end of the exchange: publishes the desired settings, and follows what is served."""

import asyncio
from collections.abc import Callable, Mapping

import structlog

from gpushare_plugin.adapters.host.exchange import ExchangeError, read_message, write_message
from gpushare_plugin.adapters.host.mps.exchange import MpsGpu, MpsRoot, MpsSettings, MpsStatus, RememberedModes
from gpushare_plugin.foundation.files.lock import is_locked
from gpushare_plugin.foundation.reported import Reported
from gpushare_plugin.foundation.structs import Struct, field

_log = structlog.get_logger()


class MpsView(Struct, frozen=True):
    """Which of the GPUs that are desired under MPS are served.

    `unserved` are those that are not served as desired, by UUID, each with the reason. `lingering` are GPUs that are no
    longer desired, but that MPS has not released: they are exclusive to it, whether it runs or not.
    """

    unserved: Mapping[str, str] = field(default_factory=dict)
    lingering: frozenset[str] = frozenset()


class MpsLink:
    """Publishes the desired settings, and follows what is served while there is anything to follow."""

    def __init__(self, root: MpsRoot, changed: Callable[[], None], every: float = 2.0) -> None:
        """Look every `every` seconds, and call `changed` when `view` is another than before.

        Nothing is desired until `want` is called; what an earlier plugin desired counts until then.
        """
        self._root = root
        self._changed = changed
        self._every = every
        self._wanted = MpsSettings()
        self._asked = asyncio.Event()
        self._trouble: str | None = None
        self._changes = Reported()
        self.view = MpsView()

    def wanted_before(self) -> MpsSettings:
        """Return what was desired last, by an earlier plugin too.

        What MPS has not released was desired in any case; where no more can be read, its limits are not known.
        """
        written = self._written() or MpsSettings()
        others = sorted(self._exclusive() - written.uuids)
        return written.model_copy(update={"gpus": (*written.gpus, *(MpsGpu(uuid=uuid) for uuid in others))})

    def want(self, settings: MpsSettings) -> None:
        """Have these GPUs under MPS with these limits; `view` has at once which are not served so yet.

        What cannot be written now is written later, and `view` says why meanwhile.
        """
        self._wanted = settings
        self._asked.set()
        self._write()
        self.view = self._look()

    async def watch(self) -> None:
        """Keep `view` up to date until cancelled; where nothing is desired, nothing is read."""
        while True:
            await self._asked.wait()
            await asyncio.sleep(self._every)
            self._write()
            view = self._look()
            if not self._wanted.gpus and not view.lingering and self._trouble is None:
                self._asked.clear()
            if view != self.view:
                self.view = view
                self._changed()

    def _write(self) -> None:
        """Write the desired settings unless they are written; a node that never had MPS gets no file."""
        try:
            if self._written() != self._wanted:
                self._root.path.mkdir(parents=True, exist_ok=True)
                write_message(self._root.wanted, self._wanted)
        except (OSError, ExchangeError) as error:
            if self._trouble is None:
                _log.error("mps_desired_not_written", reason=str(error))
            self._trouble = f"the desired settings cannot be written for gpushare mps: {error}"
        else:
            self._trouble = None

    def _written(self) -> MpsSettings | None:
        try:
            return read_message(self._root.wanted, MpsSettings) or MpsSettings()
        except ExchangeError as error:
            self._complain("wanted", str(error))
            return None

    def _look(self) -> MpsView:
        status, trouble = MpsStatus(), self._trouble
        try:
            kept = is_locked(self._root.lock)
            status = (read_message(self._root.status, MpsStatus) if kept else None) or status
            if not kept:
                trouble = (
                    f"gpushare mps does not run on this node, or uses another MPS root than {self._root.path}; in the "
                    "chart, mps.enabled: true starts it"
                )
        except (OSError, ExchangeError) as error:
            trouble = f"the status of gpushare mps cannot be read: {error}"
        percentage = self._wanted.active_thread_percentage
        unserved = {gpu.uuid: trouble or status.why_not(gpu, percentage) for gpu in self._wanted.gpus}
        return MpsView(
            unserved={uuid: reason for uuid, reason in unserved.items() if reason is not None},
            lingering=(status.in_force.uuids | self._exclusive()) - self._wanted.uuids,
        )

    def _exclusive(self) -> frozenset[str]:
        """Return the GPUs whose compute mode is still to be put back."""
        try:
            remembered = read_message(self._root.modes, RememberedModes)
        except ExchangeError as error:
            self._complain("modes", str(error))
            return frozenset()
        return frozenset(remembered.modes) if remembered else frozenset()

    def _complain(self, file: str, reason: str) -> None:
        if self._changes.is_new(file, reason):
            _log.warning("mps_file_unreadable", reason=reason)

"""NVML as a whole: loaded and initialised once, and initialised again only when the kernel's list of cards changes.

NVML lists the cards at initialisation (nvml.h, `nvmlInit_v2`). An initialisation ends every event set, so the thread
that waits for events steps aside meanwhile.
"""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import structlog

from gpushare_plugin.base.errors import DriverChangedError
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.gpus.nvml.initialisation import (
    KernelView,
    LibraryFile,
    initialisation,
    kernel_folders,
    library_file,
    look_at_kernel,
)

_log = structlog.get_logger()


class KnownCards(Struct, frozen=True):
    """The GPUs that answered the last read."""

    initialisation: int
    """The number of initialisations of NVML up to the read."""
    uuids: frozenset[str]
    """The UUIDs of the GPUs."""


class NvmlLibrary:
    """NVML, shared by a thread that reads the cards and a thread that waits for their events."""

    def __init__(self, driver_root: Path, sysfs: Path, procfs: Path, patience: float = 10.0) -> None:
        """Look for the library below `driver_root`, and for the kernel's list of cards in `sysfs` and `procfs`.

        `patience` is the longest wait, in seconds, for NVML to be given back: more than a wait for events lasts, unless
        the driver hangs.
        """
        self._patience = patience
        self._driver_root = driver_root
        self._kernel_folders = kernel_folders(sysfs, procfs)
        self._kernel_view: KernelView = frozenset()
        self._file: LibraryFile | None = None
        self._initialised = False
        self._initialisations = 0
        self._turn = threading.Condition()
        self._cards: KnownCards | None = None
        self._lent = False
        self._reserved = False

    def open(self) -> bool:
        """Initialise NVML for the first time or after a change of the cards; return whether NVML was (re)started.

        While a call of the driver hangs, NVML is not restarted. Raises NoGpuLibraryError.
        """
        # This view lacks any card added during the initialisation, so the next call restarts NVML.
        view = look_at_kernel(self._kernel_folders)
        if self._initialised and view == self._kernel_view:
            return False
        with self._alone() as alone:
            if not alone:
                reason = "GPUs were added or removed, but a call of the driver has not returned: NVML is not restarted"
                _log.warning("nvml_restart_delayed", reason=reason)
                return False
            self._shut_down()
            attempt = initialisation(self._driver_root, view)
            try:
                attempt.finish()
            finally:
                self._file = self._file or attempt.file
            self._kernel_view = attempt.kernel_view
            self._initialised = True
            self._initialisations += 1
        return True

    def close(self) -> None:
        """Shut NVML down, so that the next `open` restarts NVML; do nothing while a call of the driver hangs."""
        with self._alone() as alone:
            if alone:
                self._shut_down()

    def refuse_replaced(self) -> None:
        """Raise DriverChangedError if the library's file was replaced: pynvml keeps the library loaded first."""
        there = self._file and library_file(self._file.path)
        # During an upgrade, the file may be missing for a while.
        if there is not None and there != self._file:
            raise DriverChangedError(
                f"{there.path} is not the file that this process has loaded: the NVIDIA driver was upgraded or "
                "reinstalled. Only a new process can load it; pods keep what they hold"
            )

    def publish(self, uuids: Iterable[str]) -> None:
        """Publish the UUIDs of the cards to the thread that waits for events."""
        with self._turn:
            self._cards = KnownCards(self._initialisations, frozenset(uuids))
            self._turn.notify_all()

    @contextmanager
    def lent(self, patience: float) -> Iterator[KnownCards | None]:
        """Yield the cards, and keep NVML initialised meanwhile; None if no card can be lent in `patience` seconds."""
        with self._turn:
            self._lent = self._turn.wait_for(self._can_be_lent, patience)
            cards = self._cards if self._lent else None
        try:
            yield cards
        finally:
            with self._turn:
                self._lent = False
                self._turn.notify_all()

    def _can_be_lent(self) -> bool:
        return not self._reserved and self._cards is not None and bool(self._cards.uuids)

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield whether NVML is not lent; lend NVML to nobody until the end of the block."""
        with self._turn:
            self._reserved = True
            alone = self._turn.wait_for(lambda: not self._lent, self._patience)
            if alone:
                self._cards = None
        try:
            yield alone
        finally:
            with self._turn:
                self._reserved = False
                self._turn.notify_all()

    def _shut_down(self) -> None:
        if not self._initialised:
            return
        self._initialised = False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            _log.warning("nvml_shutdown_failed", error=str(error))

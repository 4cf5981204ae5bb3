"""NVML as a whole: loaded, initialised once, and again only when the kernel knows other cards than it did then.

NVML lists the cards when it is initialised (nvml.h, `nvmlInit_v2`), and an initialisation ends every event set, so the
thread that waits for events steps aside for it.
"""

import ctypes
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pynvml
import structlog

from gpushare_plugin.foundation.errors import DriverChangedError, NoGpuLibraryError

_log = structlog.get_logger()

_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_STEM = "libnvidia-ml.so"
_LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
_KernelView = frozenset[tuple[str, int]]
"""The cards the driver is bound to, by path and inode: a card that went and came back between two looks is another."""


class _LibraryFile(NamedTuple):
    """Which file is found under a path; an upgrade puts another one there."""

    path: Path
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class KnownCards:
    """The GPUs that answered the last look, and how often NVML had been initialised by then."""

    initialisation: int
    uuids: frozenset[str]


class NvmlLibrary:
    """NVML for one thread that looks at the cards, and one that waits for their events."""

    def __init__(self, driver_root: Path, sysfs: Path, procfs: Path, patience: float = 10.0) -> None:
        """Look for the library below `driver_root`, for what the kernel knows in `sysfs` and `procfs`.

        `patience` is how many seconds to wait for NVML to be given back: more than a wait for events lasts, unless the
        driver hangs.
        """
        self._patience = patience
        self._driver_root = driver_root
        # A container may see only those cards in /proc that it was started with; /sys is never filtered.
        self._kernel_folders = (procfs / "driver/nvidia/gpus", sysfs / "bus/pci/drivers/nvidia")
        self._kernel_view: _KernelView = frozenset()
        self._file: _LibraryFile | None = None
        self._initialised = False
        self._initialisations = 0
        self._turn = threading.Condition()
        self._cards: KnownCards | None = None
        self._lent = False
        self._reserved = False

    def open(self) -> bool:
        """Initialise NVML unless it is, and the kernel knows the same cards; return whether it was (re)started.

        Raises NoGpuLibraryError.
        """
        # What comes while NVML is being initialised is not in this view, so the next look restarts it.
        view = self._look_at_kernel()
        if self._initialised and view == self._kernel_view:
            return False
        with self._alone() as alone:
            if not alone:
                reason = "GPUs were added or removed, but a call of the driver has not returned: NVML is not restarted"
                _log.warning("nvml_restart_delayed", reason=reason)
                return False
            self._shut_down()
            self._load()
            _initialise()
            self._file = self._file or _loaded_file()
            self._kernel_view = view
            self._initialised = True
            self._initialisations += 1
        return True

    def close(self) -> None:
        """Shut NVML down, so that the next look restarts it; it stays as it is while a call of the driver hangs."""
        with self._alone() as alone:
            if alone:
                self._shut_down()

    def refuse_replaced(self) -> None:
        """Raise DriverChangedError where the library is another file by now: pynvml keeps the one it loaded first."""
        there = self._file and _library_file(self._file.path)
        # An upgrade may leave a while without any.
        if there is not None and there != self._file:
            raise DriverChangedError(
                f"{there.path} is not the file that this process has loaded: the NVIDIA driver was upgraded or "
                "reinstalled. Only a new process can load it; pods keep what they hold"
            )

    def publish(self, uuids: Iterable[str]) -> None:
        """Publish to the thread that waits for events which GPUs there are."""
        with self._turn:
            self._cards = KnownCards(self._initialisations, frozenset(uuids))
            self._turn.notify_all()

    @contextmanager
    def lent(self, patience: float) -> Iterator[KnownCards | None]:
        """Yield the GPUs, and keep NVML initialised meanwhile; None if there are none within `patience` seconds."""
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
        """Yield whether NVML is not lent, nor will be until the end of the block."""
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

    def _look_at_kernel(self) -> _KernelView:
        return frozenset(entry for folder in self._kernel_folders for entry in _devices(folder))

    def _shut_down(self) -> None:
        if not self._initialised:
            return
        self._initialised = False
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            _log.warning("nvml_shutdown_failed", error=str(error))

    def _load(self) -> None:
        """Load the driver's own library, so that pynvml, which asks for it by name, gets this one."""
        for folder in _LIBRARY_FOLDERS:
            path = self._driver_root / folder / _LIBRARY
            if (file := _library_file(path)) is not None:
                try:
                    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
                except OSError as error:
                    raise NoGpuLibraryError(f"{path} cannot be loaded: {error}") from error
                self._file = self._file or file
                return


def refuse_mismatch(error: Exception) -> None:
    """Raise DriverChangedError where NVML said that the library is not the driver's, whatever it was asked."""
    if isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
        raise DriverChangedError(
            "NVML reports different versions of the driver and its library: the NVIDIA driver was upgraded. Only "
            "a new process can load another library; pods keep what they hold. If a new one fails in the same way, "
            "the kernel still runs the old driver: load the new driver, or reboot the node; see nvidia-smi"
        ) from error


def _initialise() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        refuse_mismatch(error)
        raise NoGpuLibraryError(
            f"NVML cannot be used: {error}. On a GPU node: is the NVIDIA driver installed, and does this container "
            "see it (runtimeClassName nvidia, or nvidiaDriverRoot)? On a node without GPUs: keep this daemon off it"
        ) from error


def _library_file(path: Path) -> _LibraryFile | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _LibraryFile(path, found.st_dev, found.st_ino)


def _loaded_file() -> _LibraryFile | None:
    """Return the library that the loader chose for this process, by the name it would be found by again."""
    try:
        mappings = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    # The name ends with the version there, and the new library has another: only the link to it keeps its name.
    files = (Path(fields[-1]) for line in mappings if len(fields := line.split(maxsplit=5)) > 5)  # noqa: PLR2004
    return next(
        (_library_file(file.with_name(_LIBRARY)) for file in files if file.name.startswith(_LIBRARY_STEM)), None
    )


def _devices(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the PCI devices in a folder of the kernel's, which may not be there, or change under us."""
    try:
        for entry in folder.iterdir():
            if ":" in entry.name:
                yield str(entry), entry.lstat().st_ino
    except OSError:
        return

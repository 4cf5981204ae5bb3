"""Loading NVML's library and initialising it, which `begin` can start before the rest of the daemon is imported.

Drivers of many cards take a second and more for it. So this module imports only what is there at once, besides pynvml.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pynvml

from gpushare_plugin.foundation.errors import DriverChangedError, NoGpuLibraryError

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
SYSFS, PROCFS = Path("/sys"), Path("/proc")

KernelView = frozenset[tuple[str, int]]
"""The cards the driver is bound to, by path and inode: a card that went and came back between two looks is another."""


class LibraryFile(NamedTuple):
    """Which file is found under a path; an upgrade puts another one there."""

    path: Path
    device: int
    inode: int


class Initialisation:
    """One attempt to load the library and to initialise NVML."""

    def __init__(self, driver_root: Path, kernel_view: KernelView) -> None:
        """Prepare to load the library below `driver_root` or, where there is none, the one that the loader finds.

        `kernel_view` are the cards that the kernel knows now: NVML may not see any that come later.
        """
        self.driver_root = driver_root
        self.kernel_view = kernel_view
        self.file: LibraryFile | None = None
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Make the attempt in a daemon thread: the process can end while a driver hangs in it."""
        self._thread = threading.Thread(target=self._attempt, name="nvml", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Make the attempt, or wait for the one that was begun; raises NoGpuLibraryError or DriverChangedError."""
        if self._thread is None:
            self._attempt()
        else:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _attempt(self) -> None:
        try:
            self.file = _load(self.driver_root)
            _initialise()
            self.file = self.file or _loaded_file()
        except Exception as error:  # noqa: BLE001 - whatever happens in the thread belongs to whoever waits for it
            self._error = error


class _Ahead:
    """What was begun ahead, until it is taken over; one for the whole process, as NVML is."""

    begun: Initialisation | None = None


def begin(driver_root: Path) -> None:
    """Begin to initialise NVML in a thread; the first `initialisation` of this process takes it over."""
    _Ahead.begun = Initialisation(driver_root, look_at_kernel(kernel_folders(SYSFS, PROCFS)))
    _Ahead.begun.begin()


def initialisation(driver_root: Path, kernel_view: KernelView) -> Initialisation:
    """Return the initialisation that was begun ahead, or a new one.

    Raises DriverChangedError where the library below another driver root was begun with: a process keeps the first.
    """
    ahead, _Ahead.begun = _Ahead.begun, None
    if ahead is None:
        return Initialisation(driver_root, kernel_view)
    if ahead.driver_root != driver_root:
        raise DriverChangedError(
            f"the library below {ahead.driver_root} is loaded already, and the config says {driver_root} (did it "
            "change just now?). Only a new process can load another library"
        )
    return ahead


def kernel_folders(sysfs: Path, procfs: Path) -> tuple[Path, ...]:
    """Return where the kernel lists the cards of the driver."""
    # A container may see only those cards in /proc that it was started with; /sys is never filtered.
    return procfs / "driver/nvidia/gpus", sysfs / "bus/pci/drivers/nvidia"


def look_at_kernel(folders: Sequence[Path]) -> KernelView:
    """Return the cards that are listed in these folders of the kernel's."""
    return frozenset(entry for folder in folders for entry in _devices(folder))


def refuse_mismatch(error: Exception) -> None:
    """Raise DriverChangedError where NVML said that the library is not the driver's, whatever it was asked."""
    if isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
        raise DriverChangedError(
            "NVML reports different versions of the driver and its library: the NVIDIA driver was upgraded. Only "
            "a new process can load another library; pods keep what they hold. If a new one fails in the same way, "
            "the kernel still runs the old driver: load the new driver, or reboot the node; see nvidia-smi"
        ) from error


def library_file(path: Path) -> LibraryFile | None:
    """Return the file that is found under a path now, None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return LibraryFile(path, found.st_dev, found.st_ino)


def _load(driver_root: Path) -> LibraryFile | None:
    """Load the driver's own library, so that pynvml, which asks for it by name, gets this one; None without one."""
    for folder in _LIBRARY_FOLDERS:
        path = driver_root / folder / _LIBRARY
        if (file := library_file(path)) is not None:
            try:
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise NoGpuLibraryError(f"{path} cannot be loaded: {error}") from error
            return file
    return None


def _initialise() -> None:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        refuse_mismatch(error)
        raise NoGpuLibraryError(
            f"NVML cannot be used: {error}. On a GPU node: is the NVIDIA driver installed, and does this container "
            "see it (runtimeClassName nvidia, or nvidiaDriverRoot)? On a node without GPUs: keep this daemon off it"
        ) from error


def _loaded_file() -> LibraryFile | None:
    """Return the library that the loader chose for this process, by the name it would be found by again."""
    try:
        mappings = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    # The name ends with the version there, and the new library has another: only the link to it keeps its name.
    files = (Path(fields[-1]) for line in mappings if len(fields := line.split(maxsplit=5)) > 5)  # noqa: PLR2004
    return next((library_file(file.with_name(_LIBRARY)) for file in files if file.name.startswith(_LIBRARY_STEM)), None)


def _devices(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the PCI devices in a folder of the kernel's, which may not be there, or change under us."""
    try:
        for entry in folder.iterdir():
            if ":" in entry.name:
                yield str(entry), entry.lstat().st_ino
    except OSError:
        return

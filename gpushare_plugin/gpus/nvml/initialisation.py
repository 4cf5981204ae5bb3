"""Loads NVML's library and initialises NVML; `begin` starts early, before the rest of the daemon is imported.

With many cards, the driver takes a second or more to initialise. Therefore this module imports only pynvml and modules
that load at once.
"""

import ctypes
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pynvml

from gpushare_plugin.base.errors import DriverChangedError, NoGpuLibraryError

LIBRARY = "libnvidia-ml.so.1"
"""The name of NVML's library."""
_LIBRARY_STEM = "libnvidia-ml.so"
LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
"""Where NVML's library is below a driver root."""
SYSFS, PROCFS = Path("/sys"), Path("/proc")
"""The usual paths of the kernel's file systems."""

KernelView = frozenset[tuple[str, int]]
"""The cards bound to the driver, by path and inode: a card removed and added again has another inode."""


class LibraryFile(NamedTuple):
    """The identity of the file at a path; an upgrade of the driver puts another file there."""

    path: Path
    """The path of the file."""
    device: int
    """The number of the file system's device."""
    inode: int
    """The inode of the file."""


class Initialisation:
    """An attempt to load the library and to initialise NVML."""

    def __init__(self, driver_root: Path, kernel_view: KernelView) -> None:
        """Prepare to load the library below `driver_root`, or else the library found by the loader.

        `kernel_view` has the cards currently listed by the kernel: NVML may not see cards added later.
        """
        self.driver_root = driver_root
        self.kernel_view = kernel_view
        self.file: LibraryFile | None = None
        """The loaded library; None before the attempt, or if unknown."""
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the attempt in a daemon thread, so that the process can end while the driver hangs."""
        self._thread = threading.Thread(target=self._attempt, name="nvml", daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Make the attempt, or wait for a started attempt; raises NoGpuLibraryError or DriverChangedError."""
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
        except Exception as error:  # noqa: BLE001 - `finish` raises every error of the thread
            self._error = error


class _Ahead:
    """The attempt started ahead, until `initialisation` takes it over; like NVML, only one in a process."""

    begun: Initialisation | None = None


def begin(driver_root: Path) -> None:
    """Begin to initialise NVML in a thread; the first call of `initialisation` takes the attempt over."""
    _Ahead.begun = Initialisation(driver_root, look_at_kernel(kernel_folders(SYSFS, PROCFS)))
    _Ahead.begun.begin()


def initialisation(driver_root: Path, kernel_view: KernelView) -> Initialisation:
    """Return the attempt started ahead, or a new attempt.

    Raises DriverChangedError if the started attempt has another driver root: a process keeps the first library.
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
    """Return the folders in which the kernel lists the cards of the driver."""
    # In a container, /proc may show only the cards given to the container at its start; /sys shows all cards.
    return procfs / "driver/nvidia/gpus", sysfs / "bus/pci/drivers/nvidia"


def look_at_kernel(folders: Sequence[Path]) -> KernelView:
    """Return the cards listed in these folders of the kernel."""
    return frozenset(entry for folder in folders for entry in _devices(folder))


def refuse_mismatch(error: Exception) -> None:
    """Raise DriverChangedError if `error`, possible in any call, says that library and driver differ in version."""
    if isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
        raise DriverChangedError(
            "NVML reports different versions of the driver and its library: the NVIDIA driver was upgraded. Only "
            "a new process can load another library; pods keep what they hold. If a new one fails in the same way, "
            "the kernel still runs the old driver: load the new driver, or reboot the node; see nvidia-smi"
        ) from error


def library_file(path: Path) -> LibraryFile | None:
    """Return the file that is now at `path`, or None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return LibraryFile(path, found.st_dev, found.st_ino)


def _load(driver_root: Path) -> LibraryFile | None:
    """Load the library below the driver root and return its file, or None without a library there.

    pynvml asks for the library by name, and then gets the library already loaded.
    """
    for folder in LIBRARY_FOLDERS:
        path = driver_root / folder / LIBRARY
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
    """Return the library chosen by the loader for this process, under the name that an upgrade keeps."""
    try:
        mappings = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    # A mapped file's name ends with the version of the driver. After an upgrade, only the link keeps its name.
    files = (Path(fields[-1]) for line in mappings if len(fields := line.split(maxsplit=5)) > 5)  # noqa: PLR2004
    return next((library_file(file.with_name(LIBRARY)) for file in files if file.name.startswith(_LIBRARY_STEM)), None)


def _devices(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the PCI devices in a folder of the kernel; the folder may be missing, and may change meanwhile."""
    try:
        for entry in folder.iterdir():
            if ":" in entry.name:
                yield str(entry), entry.lstat().st_ino
    except OSError:
        return

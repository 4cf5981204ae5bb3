"""`FakeNvml`: one described node, its files, and the changes a test makes to it while programs use it."""

import ctypes
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import has_driver_limits
from gpushare_plugin.testing.nvml.building import build
from gpushare_plugin.testing.nvml.description import check_function, complete, describe
from gpushare_plugin.testing.nvml.memory import Account, ChargedMemory, DriverTable, HeldMemory, KernelFiles, forget
from gpushare_plugin.testing.nvml.node import (
    ALL_FUNCTIONS,
    EventType,
    FakeConnection,
    FakeGpu,
    FakeProcess,
    LimitBackend,
)

ENVIRONMENT_VARIABLE = "GPUSHARE_FAKE_NVML"
"""Names the file that describes the node, for the library."""
UNPRIVILEGED_VARIABLE = "GPUSHARE_FAKE_NVML_UNPRIVILEGED"
"""In the environment of a process that may not set memory limits, whoever runs it; the value does not matter."""

_RECORD = struct.Struct("=56sQ")
_EVENT = struct.Struct("=qQQII")
_NO_INSTANCE = 0xFFFFFFFF


class FakeNvml:
    """A node with GPUs, for programs that load `libnvidia-ml.so.1`; a context manager that owns its directory.

    A child process sees the node when it is started with `environment`, this process after `preload()`. Whatever is
    changed afterwards is seen by every process that uses the node, with its next call of NVML, and wakes a waiting
    `nvmlEventSetWait_v2`. Cards are named by their index, MIG devices by their position on the card.

    `gpus` has every card with nothing left out, also those taken out, so that indices last; NVML's own numbers close
    the gap when it is initialised again. `procfs` stands for `/proc`: its `driver/nvidia/gpus` has the cards that are
    there. `failures` maps names of functions to the error code they answer from the start, such as
    `{"nvmlInitWithFlags": ErrorCode.DRIVER_NOT_LOADED}`. Bytes that are no UTF-8 stand in texts as the error handler
    `surrogateescape` decodes them.

    A driver from 615 on, such as `DRIVER_WITH_LIMITS`, limits the memory of cgroups by the backend `limit_backend`, for
    which gpushare_plugin.testing.cgroups makes the cgroups. With `kernel_refuses` the kernel refuses a number in
    `dmem.max` below the memory in use, and otherwise keeps the number before without a word.
    """

    def __init__(  # noqa: PLR0913 - the parts of a node
        self,
        gpus: Sequence[FakeGpu] = (FakeGpu(),),
        connections: Iterable[FakeConnection] = (),
        *,
        driver_version: str = "570.86.15",
        cuda_version: tuple[int, int] = (12, 8),
        init_delay_ms: int = 0,
        limit_backend: LimitBackend = "misc",
        kernel_refuses: bool = False,
        failures: Mapping[str, int] | None = None,
    ) -> None:
        """Describe the node; the library is compiled if it has not been before.

        Raises `ValueError` for a node that cannot be, `CompilerError` without a C compiler.
        """
        self.gpus = complete(gpus)
        self.connections = tuple(connections)
        self.driver_version = driver_version
        self.cuda_version = cuda_version
        self.init_delay_ms = init_delay_ms
        self.limit_backend: LimitBackend = limit_backend
        self.kernel_refuses = kernel_refuses
        self.library = build(memory_limits=has_driver_limits(driver_version))
        self._failures: dict[tuple[int | None, str], int] = {}
        self._note_failures(None, failures or {})
        for index, gpu in enumerate(self.gpus):
            self._note_failures(index, gpu.failures)
        self._gone: set[int] = set()
        self._generations: Counter[int] = Counter()
        self._uses: list[tuple[str, FakeProcess]] = []
        self._hangs: dict[str, int] = {}
        self._preload = _Preload()
        self._directory = tempfile.TemporaryDirectory(prefix="fake-nvml-")
        self.path = Path(self._directory.name, "node")
        self.procfs = Path(self._directory.name, "proc")
        self._memory = ChargedMemory(self._account())
        self._write()

    def __enter__(self) -> Self:
        """Return the node itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Remove the node."""
        self.close()

    def close(self) -> None:
        """Remove the node's files; processes that still use it go on with what they read last."""
        self._preload.end()
        self._directory.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a child process see this node; lay them over its environment."""
        paths = [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(filter(None, paths)), ENVIRONMENT_VARIABLE: str(self.path)}

    def preload(self) -> None:
        """Make this process see the node, until `close()`; call it before the first `nvmlInit` of the process.

        Several nodes can follow one another in a process if NVML is shut down in between.
        """
        # A process keeps the first library that it loads, so that must be the one with all functions.
        self._preload.begin(build(), self.path)

    def fail(self, gpu: int | None, function: str, code: int) -> None:
        """Let `function`, or `ALL_FUNCTIONS`, answer the error `code` when it is asked about `gpu` or its MIG devices.

        With `gpu` None the function fails whatever it is asked about; so `nvmlEventSetWait_v2` is made to fail, which
        belongs to no card. Raises `ValueError` for a function the library does not have.
        """
        self._note_failures(gpu, {function: code})
        self._write()

    def recover(self, gpu: int | None = None, function: str = ALL_FUNCTIONS) -> None:
        """Take back what `fail` did for `gpu`, or for the library as a whole: one function, or all of them."""
        for failing in list(self._failures):
            if failing[0] == gpu and function in {failing[1], ALL_FUNCTIONS}:
                del self._failures[failing]
        self._write()

    def replace_gpu(self, gpu: int, changed: FakeGpu) -> None:
        """Let the card be like `changed` from now on; one divided in another way loses what was made through NVML."""
        before = self.gpus[gpu]
        self.gpus = complete([*self.gpus[:gpu], changed, *self.gpus[gpu + 1 :]])
        self._generations[gpu] += _divided(before) != _divided(self.gpus[gpu])
        self._note_failures(gpu, changed.failures)
        self._write()

    def use(self, uuid: str, process: FakeProcess) -> None:
        """Let a process use the card or MIG device of this UUID, which may have been made through NVML."""
        self._uses.append((uuid, process))
        self._write()

    def leave(self, uuid: str) -> None:
        """Take back what `use` did for this UUID."""
        self._uses = [each for each in self._uses if each[0] != uuid]
        self._write()

    def hang(self, function: str, call: int = 1) -> None:
        """Let that call of a function, counted from now on, not return, nor any later one; until `go_on`.

        What it does, it does when it goes on. Raises `ValueError` for a function the library does not have.
        """
        check_function(function)
        self._hangs[function] = self.calls()[function] + call
        self._write()

    def go_on(self) -> None:
        """Let all calls return."""
        self._hangs.clear()
        self._write()

    def add_gpu(self, gpu: FakeGpu) -> int:
        """Put a card in and return its index; like the real library, one in use sees it once it is initialised again.

        A card of `gpus` that was taken out comes back when it is given again, under a new index.
        """
        self.gpus = complete([*self.gpus, gpu])
        self._note_failures(len(self.gpus) - 1, gpu.failures)
        self._write()
        return len(self.gpus) - 1

    def remove_gpu(self, gpu: int) -> None:
        """Take a card out: it is lost to a library in use, and gone once that is initialised again."""
        self._gone.add(gpu)
        self._write()

    @property
    def regions(self) -> Mapping[str, int]:
        """The memory of each card under its name in the kernel's controller dmem, in bytes."""
        return {f"nvidia/{_kernel_address(gpu.pci_bus_id)}/vidmem": gpu.memory_mib * MIB for gpu in self.gpus}

    def allocate(self, gpu: int, cgroup: Path | None, mib: int, *, managed: bool = False) -> HeldMemory | None:
        """Allocate memory of a card as a process in `cgroup`, and return the memory, or None where the driver refuses.

        The driver does not charge a process whose cgroup it cannot find (None), nor any process on a card in MIG mode.
        `managed` is memory that moves between host and card, and only counts as memory of the host.
        """
        card = self.gpus[gpu]
        most = card.memory_mib - card.reserved_mib - card.used_mib
        return self._memory.allocate(gpu, None if card.mig_enabled else cgroup, mib, most, managed=managed)

    def reload_driver(self, cgroups: Path | None = None) -> None:
        """Unload and load the driver, which no process may use then: all limits are gone, also those in files.

        `cgroups` is the root of the cgroups with files of the controller dmem.
        """
        forget(self._beside("limits"), cgroups, self.regions)

    def raise_event(
        self,
        gpu: int | None,
        event: EventType = EventType.XID_CRITICAL_ERROR,
        data: int = 0,
        *,
        gpu_instance: int | None = None,
        compute_instance: int | None = None,
    ) -> None:
        """Raise an event of one type, `data` being the XID for `XID_CRITICAL_ERROR`.

        It reaches every event set that the card was registered with before, if the type was asked for. With `gpu` None
        it has no device and reaches every set. The instances are NVML's IDs where it is the fault of a MIG device.
        """
        instances = (_NO_INSTANCE if number is None else number for number in (gpu_instance, compute_instance))
        with self._beside("events").open("ab", buffering=0) as events:
            events.write(_EVENT.pack(-1 if gpu is None else gpu, event, data, *instances))

    def calls(self) -> Counter[str]:
        """Return how often each NVML function was called until now, by all processes together.

        Failed calls count. Two results can be subtracted: what remains was called in between.
        """
        return Counter(
            {name: value for name, value in _read_records(self._beside("records")) if name.startswith("nvml") and value}
        )

    def compute_mode(self, gpu: int, mig: int | None = None) -> int:
        """Return the compute mode that was last set on a card, or on a MIG device of it."""
        device = self.gpus[gpu] if mig is None else self.gpus[gpu].mig_instances[mig]
        # The library writes the mode plus one, for 0 to be a mode that was never set.
        value = dict(_read_records(self._beside("records"))).get(device.uuid, 0)
        return value - 1 if value else device.compute_mode

    def _account(self) -> Account | None:
        if not has_driver_limits(self.driver_version) or self.limit_backend == "off":
            return None
        if self.limit_backend == "misc":
            return DriverTable(self._beside("limits"))
        return KernelFiles(self._beside("limits"), tuple(self.regions))

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")

    def _note_failures(self, gpu: int | None, failures: Mapping[str, int]) -> None:
        for function, code in failures.items():
            check_function(function)
            self._failures[gpu, function] = code

    def _write(self) -> None:
        text = describe(
            self.gpus,
            self.connections,
            self._failures,
            gone=self._gone,
            generations=self._generations,
            uses=self._uses,
            hangs=self._hangs,
            driver_version=self.driver_version,
            cuda_version=self.cuda_version,
            init_delay_ms=self.init_delay_ms,
            limit_backend=self.limit_backend,
            kernel_refuses=self.kernel_refuses,
        )
        new = self._beside("new")
        new.write_text(text, errors="surrogateescape")
        new.replace(self.path)
        there = (gpu.pci_bus_id for index, gpu in enumerate(self.gpus) if index not in self._gone)
        _tell_kernel(self.procfs, set(map(_kernel_address, there)))


class _Preload:
    """Makes this process see a node.

    The dynamic loader answers `dlopen("libnvidia-ml.so.1")` with a library of that soname that is loaded already. It
    stays loaded; which node it answers for is given by an environment variable, which it reads whenever it is not
    initialised.
    """

    def __init__(self) -> None:
        self._begun = False
        self._outer_variable: str | None = None

    def begin(self, library: Path, node: Path) -> None:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        if not self._begun:
            self._outer_variable = os.environ.get(ENVIRONMENT_VARIABLE)
            self._begun = True
        os.environ[ENVIRONMENT_VARIABLE] = str(node)

    def end(self) -> None:
        if not self._begun:
            return
        self._begun = False
        if self._outer_variable is None:
            del os.environ[ENVIRONMENT_VARIABLE]
        else:
            os.environ[ENVIRONMENT_VARIABLE] = self._outer_variable


def _divided(gpu: FakeGpu) -> object:
    return gpu.mig_enabled, gpu.mig_instances


def _read_records(file: Path) -> Iterator[tuple[str, int]]:
    content = file.read_bytes() if file.exists() else b""
    for name, value in _RECORD.iter_unpack(content):
        if text := name.rstrip(b"\0"):
            yield text.decode(errors="surrogateescape"), value


def _tell_kernel(procfs: Path, there: Collection[str]) -> None:
    """Let the kernel list the cards with these addresses."""
    folder = procfs / "driver/nvidia/gpus"
    folder.mkdir(parents=True, exist_ok=True)
    known = {entry.name for entry in folder.iterdir()}
    for address in known.difference(there):
        (folder / address).rmdir()
    for address in set(there) - known:
        (folder / address).mkdir()


def _kernel_address(bus_id: str) -> str:
    """Write a PCI bus ID with four digits of domain, as the kernel does; NVML has eight."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"

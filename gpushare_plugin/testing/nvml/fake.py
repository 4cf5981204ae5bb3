"""`FakeNvml`: one described node, its files, and the changes a test makes to it while programs use it."""

import ctypes
import os
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from gpushare_plugin.testing.nvml.building import build
from gpushare_plugin.testing.nvml.description import check_function, complete, describe
from gpushare_plugin.testing.nvml.node import ALL_FUNCTIONS, EventType, FakeConnection, FakeGpu

ENVIRONMENT_VARIABLE = "GPUSHARE_FAKE_NVML"
"""Names the file that describes the node, for the library."""

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
    """

    def __init__(  # noqa: PLR0913 - the parts of a node
        self,
        gpus: Sequence[FakeGpu] = (FakeGpu(),),
        connections: Iterable[FakeConnection] = (),
        *,
        driver_version: str = "570.86.15",
        cuda_version: tuple[int, int] = (12, 8),
        init_delay_ms: int = 0,
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
        self.library = build()
        self._failures: dict[tuple[int | None, str], int] = {}
        self._note_failures(None, failures or {})
        for index, gpu in enumerate(self.gpus):
            self._note_failures(index, gpu.failures)
        self._gone: set[int] = set()
        self._outer_variable: str | None = None
        self._preloaded = False
        self._directory = tempfile.TemporaryDirectory(prefix="fake-nvml-")
        self.path = Path(self._directory.name, "node")
        self.procfs = Path(self._directory.name, "proc")
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
        if self._preloaded:
            self._preloaded = False
            if self._outer_variable is None:
                del os.environ[ENVIRONMENT_VARIABLE]
            else:
                os.environ[ENVIRONMENT_VARIABLE] = self._outer_variable
        self._directory.cleanup()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a child process see this node; lay them over its environment."""
        paths = [str(self.library.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        return {"LD_LIBRARY_PATH": ":".join(filter(None, paths)), ENVIRONMENT_VARIABLE: str(self.path)}

    def preload(self) -> None:
        """Make this process see the node, until `close()`.

        The dynamic loader answers `dlopen("libnvidia-ml.so.1")` with a library of that soname that is loaded already,
        so this must come before the first `nvmlInit` of the process. The library stays loaded; which node it answers
        for is given by an environment variable, which it reads whenever it is not initialised. So several nodes can
        follow one another in a process if NVML is shut down in between.
        """
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        if not self._preloaded:
            self._outer_variable = os.environ.get(ENVIRONMENT_VARIABLE)
            self._preloaded = True
        os.environ[ENVIRONMENT_VARIABLE] = str(self.path)

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
        """Let the card be like `changed` from now on: other memory in use, other MIG instances."""
        self.gpus = complete([*self.gpus[:gpu], changed, *self.gpus[gpu + 1 :]])
        self._note_failures(gpu, changed.failures)
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
        record = _EVENT.pack(-1 if gpu is None else gpu, event, data, *instances)
        with self._beside("events").open("ab", buffering=0) as events:
            events.write(record)

    def calls(self) -> Counter[str]:
        """Return how often each NVML function was called until now, by all processes together.

        Failed calls count. Two results can be subtracted: what remains was called in between.
        """
        return Counter({name: value for name, value in self._records() if name.startswith("nvml") and value})

    def compute_mode(self, gpu: int, mig: int | None = None) -> int:
        """Return the compute mode that was last set on a card, or on a MIG device of it."""
        device = self.gpus[gpu] if mig is None else self.gpus[gpu].mig_instances[mig]
        # The library writes the mode plus one, for 0 to be a mode that was never set.
        value = dict(self._records()).get(device.uuid, 0)
        return value - 1 if value else device.compute_mode

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{suffix}")

    def _records(self) -> list[tuple[str, int]]:
        records = self._beside("records")
        content = records.read_bytes() if records.exists() else b""
        named = ((name.rstrip(b"\0"), value) for name, value in _RECORD.iter_unpack(content))
        return [(name.decode(errors="surrogateescape"), value) for name, value in named if name]

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
            driver_version=self.driver_version,
            cuda_version=self.cuda_version,
            init_delay_ms=self.init_delay_ms,
        )
        new = self._beside("new")
        new.write_text(text, errors="surrogateescape")
        new.replace(self.path)
        self._tell_kernel()

    def _tell_kernel(self) -> None:
        folder = self.procfs / "driver/nvidia/gpus"
        folder.mkdir(parents=True, exist_ok=True)
        there = {_kernel_address(gpu.pci_bus_id) for index, gpu in enumerate(self.gpus) if index not in self._gone}
        known = {entry.name for entry in folder.iterdir()}
        for address in known - there:
            (folder / address).rmdir()
        for address in there - known:
            (folder / address).mkdir()


def _kernel_address(bus_id: str) -> str:
    """Write a PCI bus ID with four digits of domain, as the kernel does; NVML has eight."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"

"""Tests of `gpushare_plugin.testing.nvml`, through the real `pynvml`."""

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpushare_plugin.testing.nvml import (
    ALL_FUNCTIONS,
    ENVIRONMENT_VARIABLE,
    LIBRARY_NAME,
    CompilerError,
    ErrorCode,
    EventType,
    FakeConnection,
    FakeGpu,
    FakeMigInstance,
    FakeNvml,
    Topology,
    build,
    compilers,
    functions,
)
from tests.waiting import until_blocking

MIB = 1 << 20
NO_INSTANCE = 0xFFFFFFFF
LONG_MS = 60_000

Node = Callable[..., FakeNvml]


@pytest.fixture
def prepare() -> Iterator[Node]:
    """Make nodes that this process sees, one after the other, without initialising NVML."""
    nodes: list[FakeNvml] = []

    def make(*args: Any, **kwargs: Any) -> FakeNvml:
        nodes.append(FakeNvml(*args, **kwargs))
        nodes[-1].preload()
        return nodes[-1]

    yield make
    with contextlib.suppress(pynvml.NVMLError_Uninitialized):
        while True:
            pynvml.nvmlShutdown()
    for node in reversed(nodes):
        node.close()


@pytest.fixture
def start(prepare: Node) -> Node:
    """Make a node that this process sees and initialise NVML."""

    def make(*args: Any, **kwargs: Any) -> FakeNvml:
        node = prepare(*args, **kwargs)
        pynvml.nvmlInit()
        return node

    return make


def handle(index: int = 0) -> Any:
    """Return NVML's handle of a card."""
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def error_of(call: Callable[..., object], *arguments: object) -> int:
    """Return the error code that a call of NVML fails with."""
    with pytest.raises(pynvml.NVMLError) as caught:
        call(*arguments)
    code: int = caught.value.value
    return code


def listen(*indices: int, types: int = EventType.ALL) -> Any:
    """Return an event set that the cards are registered with."""
    events = pynvml.nvmlEventSetCreate()
    for index in indices:
        pynvml.nvmlDeviceRegisterEvents(handle(index), int(types), events)
    return events


def child(node: FakeNvml, code: str, **environment: str) -> subprocess.Popen[str]:
    """Start a Python that sees the node and has `pynvml`."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **node.environment, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class TestBuilding:
    """`build` and `compilers`."""

    def test_every_compiler_here_builds_the_library(self, tmp_path: Path) -> None:
        """Every C compiler found compiles the source; in continuous integration, without a warning."""
        strict = ["-Werror"] if "CI" in os.environ else []
        assert compilers()
        for number, compiler in enumerate(compilers()):
            library = build(tmp_path / str(number), [*compiler, *strict])
            assert library == tmp_path / str(number) / LIBRARY_NAME
            assert list(library.parent.iterdir()) == [library]

    def test_a_warning_is_no_failure(self, tmp_path: Path) -> None:
        """A compiler that is newer than the source may have new warnings."""
        compiler = tmp_path / "compiler"
        compiler.write_text('#!/bin/sh\ncase "$*" in *-Werror*) exit 1;; esac\nexec "$REAL" "$@"\n')
        compiler.chmod(0o755)
        real, *arguments = compilers()[0]
        assert build(tmp_path, ["env", f"REAL={real}", str(compiler), *arguments]).exists()

    def test_the_library_of_the_wheel_serves_a_child_process(self, tmp_path: Path) -> None:
        """The ziglang wheel compiles it; a child is served as well as another process."""
        pytest.importorskip("ziglang", reason="the wheel ziglang is not installed (extra `compiler`)")
        build(tmp_path, [sys.executable, "-m", "ziglang", "cc"])
        code = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
        with FakeNvml([FakeGpu(), FakeGpu()]) as node, child(node, code, LD_LIBRARY_PATH=str(tmp_path)) as process:
            assert process.communicate() == ("2\n", "")

    def test_the_library_is_compiled_once_for_a_user(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also when several processes ask at the same time."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with ThreadPoolExecutor(3) as threads:
            paths = set(threads.map(lambda _: build(), range(3)))
        (library,) = paths
        state = library.stat()
        assert build() == library
        assert library.stat().st_mtime_ns == state.st_mtime_ns
        assert library.is_relative_to(tmp_path)

    def test_a_cache_that_others_can_write_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Here it is below the directory for temporary files."""
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        cache = build().parents[1]
        assert cache.is_relative_to(tmp_path)
        cache.chmod(0o777)
        with pytest.raises(CompilerError, match="can be written by others"):
            build()

    def test_a_compiler_that_fails_is_named_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        """A compiler that fails is named, and leaves nothing behind."""
        with pytest.raises(CompilerError, match="false cannot compile"):
            build(tmp_path, ["false"])
        assert list(tmp_path.iterdir()) == []

    def test_a_missing_compiler_is_told_with_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where there is no compiler the error says what to install."""
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setitem(sys.modules, "ziglang", None)
        with pytest.raises(CompilerError, match="install one as cc, gcc or clang, or the Python package ziglang"):
            build(tmp_path)


class TestNode:
    """What a description cannot say is refused by `FakeNvml`."""

    def test_cards_that_nothing_is_said_of_are_distinct_and_last(self) -> None:
        """Cards of which nothing is said differ in UUID, minor number and bus ID, and are the same in the next node."""
        with FakeNvml([FakeGpu()] * 16) as node, FakeNvml([FakeGpu()] * 16) as again:
            assert len({gpu.uuid for gpu in node.gpus}) == 16
            assert len({gpu.pci_bus_id for gpu in node.gpus}) == 16
            assert [gpu.minor for gpu in node.gpus] == list(range(16))
            assert node.gpus == again.gpus

    @pytest.mark.parametrize(
        ("gpus", "message"),
        [
            ([FakeGpu()] * 17, "room for 16"),
            ([FakeGpu(mig_instances=(FakeMigInstance(),))], "set mig_enabled=True"),
            ([FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance(),) * 8)], "more than 7"),
            ([FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance("big"),))], "MIG profile 'big'"),
            ([FakeGpu(failures={"nvmlDeviceGetNmae": 1})], "no function 'nvmlDeviceGetNmae'"),
        ],
    )
    def test_impossible_nodes_are_refused_in_words(self, gpus: list[FakeGpu], message: str) -> None:
        """A node that cannot be is refused in words."""
        with pytest.raises(ValueError, match=message):
            FakeNvml(gpus)

    def test_a_misspelt_function_is_refused(self) -> None:
        """The node stays as it was."""
        with FakeNvml() as node:
            before = node.path.read_text()
            with pytest.raises(ValueError, match="no function"):
                node.fail(0, "nvmlDeviceGetNmae", ErrorCode.UNKNOWN)
            assert node.path.read_text() == before

    def test_the_variable_comes_back_at_the_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`close` gives the environment variable the value it had before `preload`."""
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, "/before")
        with FakeNvml() as node:
            node.preload()
            node.preload()
            assert os.environ[ENVIRONMENT_VARIABLE] == str(node.path)
        assert os.environ[ENVIRONMENT_VARIABLE] == "/before"


class TestLibrary:
    """Initialising, and what belongs to no card."""

    def test_versions_are_the_described_ones(self, start: Node) -> None:
        """The driver's and CUDA's version are the described ones."""
        start(driver_version="535.104.05", cuda_version=(12, 2))
        assert pynvml.nvmlSystemGetDriverVersion() == "535.104.05"
        assert pynvml.nvmlSystemGetCudaDriverVersion() == 12020
        assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 12020

    def test_initialisations_are_counted(self, prepare: Node) -> None:
        """The last shutdown ends the answers."""
        prepare()
        assert error_of(pynvml.nvmlDeviceGetCount) == ErrorCode.UNINITIALIZED
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()
        assert error_of(pynvml.nvmlDeviceGetCount) == ErrorCode.UNINITIALIZED
        assert error_of(pynvml.nvmlShutdown) == ErrorCode.UNINITIALIZED

    def test_a_process_sees_the_node_of_its_last_initialisation(self, prepare: Node) -> None:
        """One process sees the node that is preloaded when NVML is initialised, until it is shut down."""
        prepare([FakeGpu()])
        pynvml.nvmlInit()
        second = prepare([FakeGpu()] * 3)
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 3
        pynvml.nvmlShutdown()
        assert second.calls() == {"nvmlInitWithFlags": 1, "nvmlDeviceGetCount_v2": 1, "nvmlShutdown": 1}

    def test_initialising_can_fail_at_first_and_succeed_later(self, prepare: Node) -> None:
        """Initialising can fail from the start, and succeed later."""
        node = prepare(failures={"nvmlInitWithFlags": ErrorCode.DRIVER_NOT_LOADED})
        assert error_of(pynvml.nvmlInit) == ErrorCode.DRIVER_NOT_LOADED
        assert error_of(pynvml.nvmlDeviceGetCount) == ErrorCode.UNINITIALIZED
        node.recover(function="nvmlInitWithFlags")
        pynvml.nvmlInit()

    def test_a_process_without_a_description_has_no_driver(self, prepare: Node) -> None:
        """A process that no node was described to has no driver."""
        prepare()
        # What is set here is undone before the node goes, which puts back what was set before it came.
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(ENVIRONMENT_VARIABLE)
            assert error_of(pynvml.nvmlInit) == ErrorCode.DRIVER_NOT_LOADED
            patch.setenv(ENVIRONMENT_VARIABLE, "/nowhere")
            assert error_of(pynvml.nvmlInit) == ErrorCode.DRIVER_NOT_LOADED

    def test_initialising_takes_as_long_as_described(self, prepare: Node) -> None:
        """Initialising takes as long as described."""
        prepare(init_delay_ms=150)
        before = time.monotonic()
        pynvml.nvmlInit()
        assert time.monotonic() - before >= 0.15

    def test_error_codes_have_a_text(self, start: Node) -> None:
        """Error codes have a text, unknown ones as well."""
        start()
        assert pynvml.nvmlErrorString(ErrorCode.GPU_IS_LOST) == "GPU is lost"
        assert pynvml.nvmlErrorString(ErrorCode.UNKNOWN) == "Unknown Error"

    def test_a_senseless_description_fails_initialising(self, capfd: pytest.CaptureFixture[str], prepare: Node) -> None:
        """The mistake is reported with its line."""
        node = prepare()
        node.path.write_text("driver 1\ncolour red\n")
        assert error_of(pynvml.nvmlInit) == ErrorCode.UNKNOWN
        assert f"{node.path}, line 2: 'colour' is not understood" in capfd.readouterr().err

    def test_real_pynvml_knows_every_function(self) -> None:
        """The library has no function under a name that `pynvml` never asks for, but one for programs in C."""
        source = Path(pynvml.__file__).read_text()
        assert {name for name in functions() if f'"{name}"' not in source} == {"nvmlInit_v2"}


class TestCards:
    """What cards are like."""

    def test_cards_are_found_by_index_uuid_and_bus_id(self, start: Node) -> None:
        """Each says who it is."""
        t4 = FakeGpu(name="Tesla T4", pci_bus_id="0001:3b:00.0", minor=7, compute_capability=(7, 5))
        node = start([FakeGpu(), t4])
        assert pynvml.nvmlDeviceGetCount() == 2
        by_uuid = pynvml.nvmlDeviceGetHandleByUUID(node.gpus[1].uuid)
        for device in (handle(1), by_uuid, pynvml.nvmlDeviceGetHandleByPciBusId("00000001:3B:00.0")):
            assert pynvml.nvmlDeviceGetName(device) == "Tesla T4"
            assert pynvml.nvmlDeviceGetUUID(device) == node.gpus[1].uuid
            assert pynvml.nvmlDeviceGetIndex(device) == 1
            assert pynvml.nvmlDeviceGetMinorNumber(device) == 7
            assert pynvml.nvmlDeviceGetCudaComputeCapability(device) == (7, 5)
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByPciBusId("07:00.0")) == 0

    def test_unknown_cards_are_refused_as_nvml_does(self, start: Node) -> None:
        """A card that is not there is refused as NVML does."""
        start()
        assert error_of(handle, 1) == ErrorCode.INVALID_ARGUMENT
        assert error_of(pynvml.nvmlDeviceGetHandleByUUID, "GPU-none") == ErrorCode.NOT_FOUND
        assert error_of(pynvml.nvmlDeviceGetHandleByPciBusId, "0:1:2.0") == ErrorCode.NOT_FOUND
        assert error_of(pynvml.nvmlDeviceGetHandleByPciBusId, "elsewhere") == ErrorCode.INVALID_ARGUMENT
        assert error_of(pynvml.nvmlDeviceGetName, None) == ErrorCode.INVALID_ARGUMENT

    def test_facts_of_pci_stand_where_pynvml_reads_them(self, start: Node) -> None:
        """Both forms of the bus ID, its parts and the device's numbers stand where `pynvml` reads them."""
        start([FakeGpu(pci_bus_id="0001:3b:02.0", pci_device_id=0x1EB810DE, pci_subsystem_id=0x12A210DE)])
        pci = pynvml.nvmlDeviceGetPciInfo(handle())
        assert (pci.busId, pci.busIdLegacy) == ("00000001:3B:02.0", "0001:3B:02.0")
        assert (pci.domain, pci.bus, pci.device) == (1, 0x3B, 2)
        assert (pci.pciDeviceId, pci.pciSubSystemId) == (0x1EB810DE, 0x12A210DE)

    def test_the_drivers_share_of_memory_is_told_by_version_2(self, start: Node) -> None:
        """Version 2 tells the driver's share from what programs use; version 1 adds them up."""
        start([FakeGpu(memory_mib=16384, reserved_mib=400, used_mib=1000)])
        new = pynvml.nvmlDeviceGetMemoryInfo(handle(), version=pynvml.nvmlMemory_v2)
        assert (new.total, new.reserved, new.used, new.free) == (16384 * MIB, 400 * MIB, 1000 * MIB, 14984 * MIB)
        old = pynvml.nvmlDeviceGetMemoryInfo(handle())
        assert (old.total, old.used, old.free) == (16384 * MIB, 1400 * MIB, 14984 * MIB)
        assert error_of(pynvml.nvmlDeviceGetMemoryInfo, handle(), 1) == 25

    @pytest.mark.parametrize("code", [ErrorCode.NOT_SUPPORTED, ErrorCode.FUNCTION_NOT_FOUND])
    def test_a_driver_without_version_2_of_the_memory_answers_with_an_error(self, start: Node, code: ErrorCode) -> None:
        """A driver that does not know version 2 of the memory information is told by its error."""
        start(failures={"nvmlDeviceGetMemoryInfo_v2": code})
        assert error_of(pynvml.nvmlDeviceGetMemoryInfo, handle(), pynvml.nvmlMemory_v2) == code
        assert pynvml.nvmlDeviceGetMemoryInfo(handle()).total == 40960 * MIB

    def test_a_compute_mode_that_was_set_outlives_shutdown(self, start: Node) -> None:
        """At first the mode is as described; a mode that was set is seen from outside."""
        node = start([FakeGpu(compute_mode=2), FakeGpu()])
        assert pynvml.nvmlDeviceGetComputeMode(handle(0)) == node.compute_mode(0) == 2
        pynvml.nvmlDeviceSetComputeMode(handle(0), pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        node.fail(1, "nvmlDeviceSetComputeMode", ErrorCode.NO_PERMISSION)
        assert error_of(pynvml.nvmlDeviceSetComputeMode, handle(1), 3) == ErrorCode.NO_PERMISSION
        assert error_of(pynvml.nvmlDeviceSetComputeMode, handle(0), 4) == ErrorCode.INVALID_ARGUMENT
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetComputeMode(handle(0)) == 3
        assert (node.compute_mode(0), node.compute_mode(1)) == (3, 0)
        pynvml.nvmlDeviceSetComputeMode(handle(0), pynvml.NVML_COMPUTEMODE_DEFAULT)
        assert node.compute_mode(0) == 0

    def test_a_card_changes_under_a_handle_that_is_held(self, start: Node) -> None:
        """A card changes under a handle that is held already."""
        node = start([FakeGpu(), FakeGpu()])
        held = handle(1)
        node.replace_gpu(1, FakeGpu(used_mib=512, failures={"nvmlDeviceGetName": ErrorCode.UNKNOWN}))
        assert pynvml.nvmlDeviceGetMemoryInfo(held).used == 512 * MIB
        assert error_of(pynvml.nvmlDeviceGetName, held) == ErrorCode.UNKNOWN


class TestMig:
    """MIG mode and MIG devices."""

    def test_a_card_has_mig_mode_on_off_or_not_at_all(self, start: Node) -> None:
        """A card knows no MIG mode, has it off, or has it on."""
        start([FakeGpu(mig_enabled=None), FakeGpu(mig_enabled=False), FakeGpu(mig_enabled=True)])
        assert error_of(pynvml.nvmlDeviceGetMigMode, handle(0)) == ErrorCode.NOT_SUPPORTED
        assert pynvml.nvmlDeviceGetMigMode(handle(1)) == [0, 0]
        assert pynvml.nvmlDeviceGetMigMode(handle(2)) == [1, 1]
        assert [pynvml.nvmlDeviceGetMaxMigDeviceCount(handle(index)) for index in range(3)] == [0, 0, 7]
        assert error_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle(0), 0) == ErrorCode.NOT_SUPPORTED
        assert error_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle(2), 0) == ErrorCode.NOT_FOUND

    def test_mig_devices_are_found_by_index_and_uuid(self, start: Node) -> None:
        """MIG devices say what they are and where they belong."""
        instances = (
            FakeMigInstance("1g.5gb", gpu_instance=9),
            FakeMigInstance(
                "1c.3g.20gb", gpu_instance=2, compute_instance=1, used_mib=100, memory_mib=20096, decoders=2
            ),
        )
        node = start([FakeGpu(), FakeGpu(mig_enabled=True, mig_instances=instances)])
        small, large = (pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(1), index) for index in range(2))
        described = node.gpus[1].mig_instances
        assert [pynvml.nvmlDeviceGetUUID(device) for device in (small, large)] == [mig.uuid for mig in described]
        assert pynvml.nvmlDeviceGetName(small) == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(described[1].uuid)) == 1
        assert pynvml.nvmlDeviceIsMigDeviceHandle(small).value == 1
        assert pynvml.nvmlDeviceIsMigDeviceHandle(handle(1)).value == 0
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(large)) == node.gpus[1].uuid
        assert (pynvml.nvmlDeviceGetGpuInstanceId(small), pynvml.nvmlDeviceGetComputeInstanceId(small)) == (9, 0)
        assert (pynvml.nvmlDeviceGetGpuInstanceId(large), pynvml.nvmlDeviceGetComputeInstanceId(large)) == (2, 1)
        assert pynvml.nvmlDeviceGetMemoryInfo(large).free == 19996 * MIB
        attributes = pynvml.nvmlDeviceGetAttributes(large)
        assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 1)
        assert (attributes.multiprocessorCount, attributes.memorySizeMB) == (14, 20096)
        assert (attributes.sharedCopyEngineCount, attributes.sharedDecoderCount) == (1, 2)
        assert pynvml.nvmlDeviceGetAttributes(small).memorySizeMB == 4864

    @pytest.mark.parametrize(
        ("profile", "number"),
        [("1g.5gb", 0), ("3g.20gb", 2), ("7g.40gb", 4), ("1g.5gb+me", 7), ("1g.24gb-me", 13), ("2g.48gb+gfx", 11)],
    )
    def test_a_gpu_instance_tells_the_id_of_its_profile(self, start: Node, profile: str, number: int) -> None:
        """The card tells which of NVML's profiles has that ID."""
        start([FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance(profile, gpu_instance=3),))])
        instance = pynvml.nvmlDeviceGetGpuInstanceById(handle(), 3)
        info = pynvml.nvmlGpuInstanceGetInfo(instance)
        known = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle(), number, version=1)
        assert (info.id, info.profileId) == (3, known.id)
        assert known.sliceCount == int(profile[0])
        assert error_of(pynvml.nvmlDeviceGetGpuInstanceById, handle(), 4) == ErrorCode.NOT_FOUND
        other = lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle(), number + 1, version=1)  # noqa: E731
        assert error_of(other) == ErrorCode.NOT_SUPPORTED

    def test_a_mig_device_that_fails_leaves_the_others(self, start: Node) -> None:
        """Others answer what one MIG device answers with an error; a number may belong to none."""
        gap = {"nvmlDeviceGetMigDeviceHandleByIndex": ErrorCode.NOT_FOUND}
        broken = {"nvmlDeviceGetUUID": ErrorCode.UNKNOWN}
        instances = (FakeMigInstance(failures=gap), FakeMigInstance(failures=broken), FakeMigInstance())
        start([FakeGpu(mig_enabled=True, mig_instances=instances)])
        assert error_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle(), 0) == ErrorCode.NOT_FOUND
        second, third = (pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), number) for number in (1, 2))
        assert error_of(pynvml.nvmlDeviceGetUUID, second) == ErrorCode.UNKNOWN
        assert pynvml.nvmlDeviceGetUUID(third).startswith("MIG-")

    def test_questions_to_the_wrong_kind_of_handle_are_refused(self, start: Node) -> None:
        """Questions that make sense for a card or for a MIG device alone refuse the other."""
        start([FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance(),))])
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 0)
        assert error_of(pynvml.nvmlDeviceGetMinorNumber, mig) == ErrorCode.INVALID_ARGUMENT
        assert error_of(pynvml.nvmlDeviceGetGpuInstanceId, handle()) == ErrorCode.INVALID_ARGUMENT
        assert error_of(pynvml.nvmlDeviceGetAttributes, handle()) == ErrorCode.NOT_SUPPORTED
        assert error_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle(), 7) == ErrorCode.INVALID_ARGUMENT

    def test_the_compute_mode_is_set_on_mig_devices_and_not_on_their_card(self, start: Node) -> None:
        """In MIG mode the compute mode is set on the MIG device, not on the card."""
        node = start([FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance(), FakeMigInstance()))])
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 1)
        pynvml.nvmlDeviceSetComputeMode(mig, 3)
        assert error_of(pynvml.nvmlDeviceSetComputeMode, handle(), 3) == ErrorCode.NOT_SUPPORTED
        assert [node.compute_mode(0), node.compute_mode(0, 0), node.compute_mode(0, 1)] == [0, 0, 3]


class TestRecoveryAction:
    """The one field value there is."""

    def test_every_field_has_a_status_of_its_own(self, start: Node) -> None:
        """The action is told for a card that has one, 0 included; another field or card answers that it cannot."""
        start([FakeGpu(recovery_action=4), FakeGpu(recovery_action=0), FakeGpu()])
        field = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        action, other = pynvml.nvmlDeviceGetFieldValues(handle(0), [field, pynvml.NVML_FI_DEV_ECC_CURRENT])
        assert (action.nvmlReturn, action.valueType) == (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT)
        assert action.value.uiVal == pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET
        assert other.nvmlReturn == ErrorCode.NOT_SUPPORTED
        answers = [pynvml.nvmlDeviceGetFieldValues(handle(index), [field])[0] for index in (1, 2)]
        assert [answer.nvmlReturn for answer in answers] == [0, ErrorCode.NOT_SUPPORTED]
        assert answers[0].value.uiVal == pynvml.NVML_GPU_RECOVERY_ACTION_NONE


class TestChangingCards:
    """Cards that are put in and taken out."""

    def test_a_new_card_waits_for_initialising(self, start: Node) -> None:
        """Like the real library, one in use does not see a card that was put in."""
        node = start([FakeGpu()])
        assert node.add_gpu(FakeGpu("Tesla T4", recovery_action=0)) == 1
        assert pynvml.nvmlDeviceGetCount() == 1
        assert error_of(handle, 1) == ErrorCode.INVALID_ARGUMENT
        assert error_of(pynvml.nvmlDeviceGetHandleByUUID, node.gpus[1].uuid) == ErrorCode.NOT_FOUND
        assert error_of(pynvml.nvmlDeviceGetHandleByPciBusId, node.gpus[1].pci_bus_id) == ErrorCode.NOT_FOUND
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetCount() == 1
        pynvml.nvmlShutdown()
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetName(handle(1)) == "Tesla T4"

    def test_a_card_taken_out_is_lost_and_then_gone(self, start: Node) -> None:
        """It keeps its number until NVML is initialised again; its index here is its own for ever."""
        node = start([FakeGpu("A"), FakeGpu("B"), FakeGpu("C")])
        held = handle(1)
        node.remove_gpu(1)
        assert pynvml.nvmlDeviceGetCount() == 3
        assert error_of(handle, 1) == error_of(pynvml.nvmlDeviceGetName, held) == ErrorCode.GPU_IS_LOST
        assert pynvml.nvmlDeviceGetName(handle(2)) == "C"
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert [pynvml.nvmlDeviceGetName(handle(index)) for index in range(2)] == ["A", "C"]
        assert pynvml.nvmlDeviceGetIndex(pynvml.nvmlDeviceGetHandleByUUID(node.gpus[2].uuid)) == 1
        assert error_of(pynvml.nvmlDeviceGetName, held) == ErrorCode.INVALID_ARGUMENT
        node.fail(2, "nvmlDeviceGetName", ErrorCode.UNKNOWN)
        assert error_of(pynvml.nvmlDeviceGetName, handle(1)) == ErrorCode.UNKNOWN

    def test_a_card_that_is_put_back_has_a_new_index(self, start: Node) -> None:
        """Otherwise the card is the same."""
        node = start([FakeGpu("A"), FakeGpu("B")])
        node.remove_gpu(0)
        node.add_gpu(node.gpus[0])
        assert node.gpus[2] == node.gpus[0]
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert [pynvml.nvmlDeviceGetName(handle(index)) for index in range(2)] == ["B", "A"]
        assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(node.gpus[0].uuid)) == node.gpus[0].uuid

    def test_the_kernel_knows_the_cards_there_are(self) -> None:
        """A directory stands for what the driver shows in `/proc`."""
        with FakeNvml([FakeGpu(), FakeGpu(pci_bus_id="00010000:AB:00.0")]) as node:
            known = node.procfs / "driver/nvidia/gpus"
            assert {entry.name for entry in known.iterdir()} == {"0000:07:00.0", "10000:ab:00.0"}
            node.remove_gpu(0)
            node.add_gpu(FakeGpu())
            assert {entry.name for entry in known.iterdir()} == {"10000:ab:00.0", "0000:27:00.0"}


class TestConnections:
    """Topology, NvLinks and peer-to-peer access."""

    def test_the_common_ancestor_of_two_cards_is_the_described_one(self, start: Node) -> None:
        """From both sides; the whole system where nothing is said."""
        start([FakeGpu()] * 3, [FakeConnection(0, 2, Topology.SINGLE_SWITCH)])
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor
        assert level(handle(0), handle(2)) == level(handle(2), handle(0)) == pynvml.NVML_TOPOLOGY_SINGLE
        assert level(handle(0), handle(1)) == pynvml.NVML_TOPOLOGY_SYSTEM
        assert level(handle(1), handle(1)) == pynvml.NVML_TOPOLOGY_INTERNAL

    def test_links_say_whether_they_are_up_and_where_they_lead(self, start: Node) -> None:
        """Numbers past the last NvLink are refused."""
        node = start([FakeGpu(switch_links=1, idle_links=1), FakeGpu(), FakeGpu()], [FakeConnection(0, 1, nvlinks=2)])
        state = pynvml.nvmlDeviceGetNvLinkState
        assert [state(handle(0), link) for link in range(4)] == [1, 1, 1, 0]
        remotes = [pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle(0), link) for link in range(3)]
        assert [remote.busId for remote in remotes[:2]] == [node.gpus[1].pci_bus_id] * 2
        assert remotes[0].pciDeviceId == node.gpus[1].pci_device_id
        types = [pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle(0), link) for link in range(3)]
        assert types == [*[pynvml.NVML_NVLINK_DEVICE_TYPE_GPU] * 2, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH]
        assert error_of(state, handle(0), 4) == ErrorCode.INVALID_ARGUMENT
        assert error_of(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle(0), 3) == ErrorCode.INVALID_ARGUMENT
        assert error_of(state, handle(2), 0) == ErrorCode.NOT_SUPPORTED

    def test_peer_to_peer_access_is_as_described(self, start: Node) -> None:
        """Peer-to-peer access is as described; over NvLink it takes a direct link or a switch for both."""
        switched = FakeGpu(switch_links=1)
        start(
            [FakeGpu(), FakeGpu(), switched, switched],
            [
                FakeConnection(0, 1, nvlinks=1),
                FakeConnection(0, 3, p2p_status=pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY),
            ],
        )
        read, nvlink = pynvml.NVML_P2P_CAPS_INDEX_READ[0], pynvml.NVML_P2P_CAPS_INDEX_NVLINK

        def status(first: int, second: int, capability: int) -> int:
            answer: int = pynvml.nvmlDeviceGetP2PStatus(handle(first), handle(second), capability)
            return answer

        assert [status(1, 0, read), status(1, 2, read), status(3, 0, read)] == [0, 0, 4]
        assert [status(1, 0, nvlink), status(2, 3, nvlink), status(1, 2, nvlink)] == [0, 0, 5]
        assert error_of(status, 0, 1, 5) == ErrorCode.INVALID_ARGUMENT


class TestFailures:
    """Cards and functions that fail, from the start or from some moment on."""

    def test_a_function_can_fail_for_one_card(self, start: Node) -> None:
        """One function fails for one card, the others go on."""
        start([FakeGpu(failures={"nvmlDeviceGetName": ErrorCode.UNKNOWN}), FakeGpu()])
        assert error_of(pynvml.nvmlDeviceGetName, handle(0)) == ErrorCode.UNKNOWN
        assert pynvml.nvmlDeviceGetMinorNumber(handle(0)) == 0
        assert pynvml.nvmlDeviceGetName(handle(1))

    def test_a_lost_card_fails_every_question(self, start: Node) -> None:
        """A lost card fails every question, looking it up and its MIG devices included, until it recovers."""
        lost = FakeGpu(mig_enabled=True, mig_instances=(FakeMigInstance(),))
        node = start([FakeGpu(), lost])
        held = handle(1)
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(held, 0)
        node.fail(1, ALL_FUNCTIONS, ErrorCode.GPU_IS_LOST)
        assert error_of(handle, 1) == ErrorCode.GPU_IS_LOST
        assert error_of(pynvml.nvmlDeviceGetHandleByUUID, node.gpus[1].uuid) == ErrorCode.GPU_IS_LOST
        assert error_of(pynvml.nvmlDeviceGetUUID, held) == ErrorCode.GPU_IS_LOST
        assert error_of(pynvml.nvmlDeviceGetUUID, mig) == ErrorCode.GPU_IS_LOST
        assert error_of(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle(0), held) == ErrorCode.GPU_IS_LOST
        assert pynvml.nvmlDeviceGetCount() == 2
        assert pynvml.nvmlDeviceGetName(handle(0))
        node.recover(1)
        assert pynvml.nvmlDeviceGetUUID(mig) == node.gpus[1].mig_instances[0].uuid

    def test_a_single_function_can_recover(self, start: Node) -> None:
        """Other cards are left alone."""
        node = start([FakeGpu(), FakeGpu()])
        for gpu, function in ((0, "nvmlDeviceGetName"), (0, "nvmlDeviceGetIndex"), (1, "nvmlDeviceGetName")):
            node.fail(gpu, function, ErrorCode.UNKNOWN)
        node.recover(0, "nvmlDeviceGetName")
        assert pynvml.nvmlDeviceGetName(handle(0))
        assert error_of(pynvml.nvmlDeviceGetIndex, handle(0)) == ErrorCode.UNKNOWN
        assert error_of(pynvml.nvmlDeviceGetName, handle(1)) == ErrorCode.UNKNOWN


class TestEvents:
    """Event sets."""

    def test_waiting_for_nothing_takes_the_time_asked_for(self, start: Node) -> None:
        """Waiting for nothing takes the time asked for, without keeping a processor busy."""
        start()
        events = listen(0)
        assert error_of(pynvml.nvmlEventSetWait_v2, events, 0) == ErrorCode.TIMEOUT
        before, used = time.monotonic(), time.thread_time()
        assert error_of(pynvml.nvmlEventSetWait_v2, events, 300) == ErrorCode.TIMEOUT
        assert time.monotonic() - before >= 0.3
        assert time.thread_time() - used < 0.15

    def test_events_come_in_the_order_in_which_they_were_raised(self, start: Node) -> None:
        """Events come one at a time in the order they were raised, with all that is known of them."""
        mig = (FakeMigInstance("1g.5gb", gpu_instance=7),)
        node = start([FakeGpu(), FakeGpu(mig_enabled=True, mig_instances=mig)])
        events = listen(0, 1)
        node.raise_event(0, data=79)
        node.raise_event(1, data=31, gpu_instance=7, compute_instance=0)
        node.raise_event(0, EventType.DOUBLE_BIT_ECC_ERROR)
        node.raise_event(None, data=95)
        seen = [pynvml.nvmlEventSetWait_v2(events, LONG_MS) for _ in range(4)]
        assert [event.eventType for event in seen] == [8, 8, 2, 8]
        assert [event.eventData for event in seen] == [79, 31, 0, 95]
        assert [event.gpuInstanceId for event in seen] == [NO_INSTANCE, 7, NO_INSTANCE, NO_INSTANCE]
        assert [event.computeInstanceId for event in seen] == [NO_INSTANCE, 0, NO_INSTANCE, NO_INSTANCE]
        assert [pynvml.nvmlDeviceGetIndex(event.device) for event in seen[:3]] == [0, 1, 0]
        assert not seen[3].device

    def test_events_that_were_not_asked_for_are_not_delivered(self, start: Node) -> None:
        """An event before registration, of another type or another card is not delivered."""
        node = start([FakeGpu(), FakeGpu(), FakeGpu()])
        events = listen(0, types=EventType.XID_CRITICAL_ERROR)
        node.raise_event(1, data=1)
        node.raise_event(2, data=2)
        node.raise_event(0, EventType.DOUBLE_BIT_ECC_ERROR, data=3)
        pynvml.nvmlDeviceRegisterEvents(handle(1), 8, events)
        node.raise_event(1, data=4)
        assert pynvml.nvmlEventSetWait_v2(events, LONG_MS).eventData == 4
        assert error_of(pynvml.nvmlEventSetWait_v2, events, 0) == ErrorCode.TIMEOUT

    def test_every_event_set_gets_the_events_of_its_cards(self, start: Node) -> None:
        """Two event sets each get an event of the same card."""
        node = start()
        sets = [listen(0), listen(0)]
        node.raise_event(0, data=48)
        assert [pynvml.nvmlEventSetWait_v2(events, LONG_MS).eventData for events in sets] == [48, 48]

    def test_a_card_without_ecc_says_so_and_registers_nothing(self, start: Node) -> None:
        """A card without ECC says so, and registers nothing when asked for ECC errors."""
        start([FakeGpu(supported_events=EventType.XID_CRITICAL_ERROR)])
        assert pynvml.nvmlDeviceGetSupportedEventTypes(handle()) == 8
        events = pynvml.nvmlEventSetCreate()
        assert error_of(pynvml.nvmlDeviceRegisterEvents, handle(), 10, events) == ErrorCode.NOT_SUPPORTED
        pynvml.nvmlDeviceRegisterEvents(handle(), 8, events)

    def test_freed_event_sets_are_refused(self, start: Node) -> None:
        """A set that was freed, or that a shutdown freed, is refused; the room for sets is not used up."""
        start()
        for _ in range(100):
            pynvml.nvmlEventSetFree(listen(0))
        events = listen(0)
        pynvml.nvmlEventSetFree(events)
        assert error_of(pynvml.nvmlEventSetWait_v2, events, 0) == ErrorCode.INVALID_ARGUMENT
        assert error_of(pynvml.nvmlEventSetFree, events) == ErrorCode.INVALID_ARGUMENT
        events = listen(0)
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
        assert error_of(pynvml.nvmlEventSetWait_v2, events, 0) == ErrorCode.INVALID_ARGUMENT
        assert error_of(lambda: [pynvml.nvmlEventSetCreate() for _ in range(33)]) == 23

    def test_a_process_without_a_free_descriptor_gets_an_error(
        self, start: Node, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """A process without a free file descriptor gets an error and no set, and nothing is printed."""
        start()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            found = error_of(pynvml.nvmlEventSetCreate)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert found == 23
        assert capfd.readouterr().err == ""
        listen(0)

    def test_a_thread_that_waits_does_not_hold_up_other_calls(self, start: Node) -> None:
        """While one thread waits others are answered at once, and the event ends the wait."""
        node = start()
        events = listen(0)
        with ThreadPoolExecutor(4) as threads:
            waiting = threads.submit(pynvml.nvmlEventSetWait_v2, events, LONG_MS)
            until_blocking(lambda: node.calls()["nvmlEventSetWait_v2"] == 1)
            before = node.calls()
            names = list(threads.map(lambda _: pynvml.nvmlDeviceGetName(handle()), range(300)))
            assert names == [node.gpus[0].name] * 300
            assert (node.calls() - before)["nvmlDeviceGetName"] == 300
            assert not waiting.done()
            node.raise_event(0, data=74)
            assert waiting.result().eventData == 74

    def test_waiting_can_be_made_to_fail_for_good(self, start: Node) -> None:
        """Waiting can be made to fail: the wait that is going on ends, and the next ones fail at once."""
        node = start()
        events = listen(0)
        failed: list[int] = []
        waiter = threading.Thread(
            target=lambda: failed.append(error_of(pynvml.nvmlEventSetWait_v2, events, LONG_MS)), daemon=True
        )
        waiter.start()
        until_blocking(lambda: node.calls()["nvmlEventSetWait_v2"] == 1)
        node.fail(None, "nvmlEventSetWait_v2", ErrorCode.UNKNOWN)
        waiter.join()
        assert failed == [ErrorCode.UNKNOWN]
        assert error_of(pynvml.nvmlEventSetWait_v2, events, LONG_MS) == ErrorCode.UNKNOWN
        node.recover()
        assert error_of(pynvml.nvmlEventSetWait_v2, events, 0) == ErrorCode.TIMEOUT


LISTENER = """
import json, sys, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(1)
events = pynvml.nvmlEventSetCreate()
pynvml.nvmlDeviceRegisterEvents(device, 8, events)
event = pynvml.nvmlEventSetWait_v2(events, 60000)
try:
    pynvml.nvmlEventSetWait_v2(events, 60000)
except pynvml.NVMLError as error:
    code = error.value
print(json.dumps([pynvml.nvmlDeviceGetUUID(event.device), event.eventData, code]))
pynvml.nvmlShutdown()
"""


class TestOtherProcess:
    """A node that another process uses."""

    def test_changes_of_the_node_reach_a_child_process(self) -> None:
        """A child with `environment` sees the node, its events and its failures; its calls are counted here."""
        with FakeNvml([FakeGpu(), FakeGpu()]) as node, child(node, LISTENER) as process:
            until_blocking(lambda: node.calls()["nvmlEventSetWait_v2"] == 1)
            node.raise_event(1, data=79)
            until_blocking(lambda: node.calls()["nvmlEventSetWait_v2"] == 2)
            node.fail(None, "nvmlEventSetWait_v2", ErrorCode.GPU_IS_LOST)
            output, errors = process.communicate()
            assert errors == ""
            assert json.loads(output) == [node.gpus[1].uuid, 79, ErrorCode.GPU_IS_LOST]
            assert node.calls() == {
                "nvmlInitWithFlags": 1,
                "nvmlDeviceGetHandleByIndex_v2": 1,
                "nvmlEventSetCreate": 1,
                "nvmlDeviceRegisterEvents": 1,
                "nvmlEventSetWait_v2": 2,
                "nvmlDeviceGetUUID": 1,
                "nvmlShutdown": 1,
            }

    def test_calls_of_several_processes_are_all_counted(self, start: Node) -> None:
        """Calls of several processes at once are all counted."""
        code = "import pynvml\npynvml.nvmlInit()\nfor _ in range(500): pynvml.nvmlDeviceGetCount()"
        node = start()
        assert node.calls() == {"nvmlInitWithFlags": 1}
        with child(node, code) as first, child(node, code) as second:
            for _ in range(500):
                pynvml.nvmlDeviceGetCount()
            assert [first.wait(), second.wait()] == [0, 0]
        assert node.calls() == {"nvmlInitWithFlags": 3, "nvmlDeviceGetCount_v2": 1500}

    def test_a_process_goes_on_with_a_node_that_was_removed(self) -> None:
        """A process that still uses a removed node goes on with what it read last."""
        code = "import pynvml\npynvml.nvmlInit()\nprint(flush=True)\ninput()\nprint(pynvml.nvmlDeviceGetCount())"
        with FakeNvml([FakeGpu(), FakeGpu()]) as node:
            environment = {**os.environ, **node.environment}
            process = subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert process.stdout is not None
            process.stdout.readline()
        with process:
            assert process.communicate("\n")[0] == "2\n"

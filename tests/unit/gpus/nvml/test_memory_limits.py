"""Tests of `gpushare_plugin.gpus.nvml.memory_limits`."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.gpus.memory_limits import (
    LimitError,
    LimitPermissionError,
    LimitReading,
    LimitRefusedError,
    NoCgroupError,
    NoLimitAnswerError,
    NoLimitFunctionError,
)
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.testing.nvml import (
    DRIVER_WITH_LIMITS,
    UNPRIVILEGED_VARIABLE,
    ErrorCode,
    FakeGpu,
    FakeMigInstance,
    FakeNvml,
)
from tests.unit.gpus.conftest import Node

UUIDS = ("GPU-00000000-0000-4000-8000-000000000000", "GPU-00000001-0000-4000-8000-000000000001")
MIG = "MIG-00000000-0000-4000-8000-000000000000"
GET, SET = "nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"
ONE = MemoryLimit(1024 * MIB)
BURST = MemoryLimit(2048 * MIB, 1024 * MIB)


@pytest.fixture
def limits(tmp_path: Path) -> NvmlMemoryLimits:
    """Return the limits of the node that this process sees."""
    return NvmlMemoryLimits(tmp_path, tmp_path, tmp_path)


@pytest.fixture
def node(describe: Node) -> FakeNvml:
    """Describe two cards, whose driver keeps the limits itself."""
    return describe([FakeGpu(uuid=uuid) for uuid in UUIDS], driver_version=DRIVER_WITH_LIMITS)


@pytest.fixture
def cgroup(tmp_path: Path) -> Path:
    """Make a cgroup below a root."""
    made = tmp_path / "cgroup/container"
    made.mkdir(parents=True)
    for each in (made, made.parent):
        (each / "cgroup.procs").touch()
    return made


@pytest.mark.usefixtures("node")
def test_limits_that_were_set_are_read_back_for_this_gpu_alone(limits: NvmlMemoryLimits, cgroup: Path) -> None:
    """Limits belong to a cgroup and a GPU; another cgroup and another GPU have none."""
    for limit in (ONE, BURST, NO_LIMIT):
        limits.set(UUIDS[0], cgroup, limit)
        assert limits.read(UUIDS[0], cgroup) == LimitReading(limit, 0)
    for uuid, other in ((UUIDS[1], cgroup), (UUIDS[0], cgroup.parent)):
        with pytest.raises(NoLimitAnswerError, match="Either no limit was set"):
            limits.read(uuid, other)


def test_threads_that_begin_together_initialise_nvml_once(
    describe: Node, limits: NvmlMemoryLimits, cgroup: Path
) -> None:
    """The agent has a thread for each GPU, and after two initialisations NVML never lists other cards."""
    node = describe([FakeGpu(uuid=uuid) for uuid in UUIDS], driver_version=DRIVER_WITH_LIMITS, init_delay_ms=200)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda uuid: limits.set(uuid, cgroup, ONE), UUIDS))
    assert node.calls()["nvmlInitWithFlags"] == 1


@pytest.mark.parametrize("driver", ["570.86.15", "610.43.02"])
def test_a_driver_before_615_has_no_such_function(
    describe: Node, limits: NvmlMemoryLimits, cgroup: Path, driver: str
) -> None:
    """Whoever asks is told to upgrade."""
    describe([FakeGpu(uuid=UUIDS[0])], driver_version=driver)
    with pytest.raises(NoLimitFunctionError, match="Drivers from 615 on"):
        limits.read(UUIDS[0], cgroup)
    with pytest.raises(NoLimitFunctionError, match="Drivers from 615 on"):
        limits.set(UUIDS[0], cgroup, ONE)


def test_a_library_without_the_symbols_is_one_without_the_functions(cgroup: Path) -> None:
    """The loader finds no symbol in the library of an older driver; a process of its own loads that library."""
    code = (
        "import sys; from pathlib import Path; from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits\n"
        "limits = NvmlMemoryLimits(*[Path('/nowhere')] * 3)\n"
        "try: limits.read(sys.argv[1], Path(sys.argv[2]))\n"
        "except Exception as error: print(type(error).__name__)\n"
        "import ctypes; print(hasattr(ctypes.CDLL('libnvidia-ml.so.1'), 'nvmlDeviceGetMemoryLimits_v1'))"
    )
    answers = {}
    for driver in ("570.86.15", DRIVER_WITH_LIMITS):
        with FakeNvml([FakeGpu(uuid=UUIDS[0])], driver_version=driver) as old:
            command = [sys.executable, "-c", code, UUIDS[0], str(cgroup)]
            answers[driver] = subprocess.check_output(command, env=old.environment | {"PYTHONPATH": ":".join(sys.path)})
    assert answers["570.86.15"].split() == [b"NoLimitFunctionError", b"False"]
    assert answers[DRIVER_WITH_LIMITS].split() == [b"NoLimitAnswerError", b"True"]


def test_without_a_backend_the_answer_is_the_one_of_a_cgroup_without_limit(
    describe: Node, limits: NvmlMemoryLimits, cgroup: Path
) -> None:
    """NVML has one answer for both, and the words name both causes."""
    describe([FakeGpu(uuid=UUIDS[0])], driver_version=DRIVER_WITH_LIMITS, limit_backend="off")
    for ask in (lambda: limits.read(UUIDS[0], cgroup), lambda: limits.set(UUIDS[0], cgroup, ONE)):
        with pytest.raises(NoLimitAnswerError, match="cgroup controller dmem or misc"):
            ask()


@pytest.mark.usefixtures("node")
def test_a_cgroup_that_is_gone_is_told_from_a_refusal(limits: NvmlMemoryLimits, cgroup: Path) -> None:
    """A container may end at any moment."""
    gone = cgroup / "gone"
    with pytest.raises(NoCgroupError, match=f"{gone} on {UUIDS[0]} cannot be read: .* There is no such directory"):
        limits.read(UUIDS[0], gone)
    with pytest.raises(NoCgroupError, match="cannot be set to a hard limit of 1024 MiB"):
        limits.set(UUIDS[0], gone, ONE)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("limit", [MemoryLimit(40961 * MIB), MemoryLimit(MIB, 2 * MIB), MemoryLimit(None, 40961 * MIB)])
def test_limits_above_the_gpu_or_upside_down_are_refused(
    limits: NvmlMemoryLimits, cgroup: Path, limit: MemoryLimit
) -> None:
    """The driver takes no limit above the memory of the GPU, and no soft limit above the hard one."""
    with pytest.raises(LimitRefusedError, match="must not be above the memory of the GPU"):
        limits.set(UUIDS[0], cgroup, limit)


@pytest.mark.parametrize("code", [ErrorCode.IN_USE, ErrorCode.OPERATING_SYSTEM, ErrorCode.UNKNOWN])
def test_a_limit_below_the_memory_in_use_is_refused_whatever_nvml_calls_that(
    node: FakeNvml, limits: NvmlMemoryLimits, cgroup: Path, code: ErrorCode
) -> None:
    """nvml.h has no answer of its own for this case."""
    node.fail(0, SET, code)
    with pytest.raises(LimitRefusedError, match="nor below the memory in use"):
        limits.set(UUIDS[0], cgroup, ONE)


def test_a_driver_that_keeps_the_old_limit_without_a_word_is_noticed(
    describe: Node, limits: NvmlMemoryLimits, cgroup: Path
) -> None:
    """Limits are read back: somebody else may write the kernel's files, or the kernel may not take the number."""
    node = describe([FakeGpu(uuid=UUIDS[0])], driver_version=DRIVER_WITH_LIMITS, limit_backend="dmem")
    (cgroup / "dmem.max").touch()
    (cgroup / "dmem.min").symlink_to("/dev/null")
    limits.set(UUIDS[0], cgroup, ONE)
    with pytest.raises(
        LimitRefusedError, match=r"took .* a soft limit of 1024 MiB, and reports a hard limit of 2048 MiB"
    ):
        limits.set(UUIDS[0], cgroup, BURST)
    assert node.calls()[GET] == 2


@pytest.mark.usefixtures("node")
def test_only_root_can_set_limits_and_everybody_can_read_them(
    limits: NvmlMemoryLimits, cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon without the right sees what an agent with the right has set."""
    limits.set(UUIDS[0], cgroup, ONE)
    monkeypatch.setenv(UNPRIVILEGED_VARIABLE, "1")
    with pytest.raises(LimitPermissionError, match="Only root can set limits"):
        limits.set(UUIDS[0], cgroup, BURST)
    assert limits.read(UUIDS[0], cgroup).limit == ONE


def test_mig_has_no_limits(describe: Node, limits: NvmlMemoryLimits, cgroup: Path) -> None:
    """Neither an instance nor a card in MIG mode has any."""
    card = FakeGpu(uuid=UUIDS[0], mig_enabled=True, mig_instances=(FakeMigInstance(uuid=MIG),))
    describe([card], driver_version=DRIVER_WITH_LIMITS)
    with pytest.raises(LimitRefusedError, match="MIG instances have no limits"):
        limits.set(MIG, cgroup, ONE)
    with pytest.raises(LimitError):
        limits.read(MIG, cgroup)
    with pytest.raises(NoLimitAnswerError, match="a GPU that is not in MIG mode"):
        limits.set(UUIDS[0], cgroup, ONE)


def test_a_card_that_fails_is_told_with_the_card(node: FakeNvml, limits: NvmlMemoryLimits, cgroup: Path) -> None:
    """A failure that is about the card says so, and so does a GPU that is not there."""
    node.fail(0, GET, ErrorCode.GPU_IS_LOST)
    with pytest.raises(LimitError, match=rf"{UUIDS[0]} cannot be read: GPU is lost\. See the messages of the driver"):
        limits.read(UUIDS[0], cgroup)
    unknown = UUIDS[0].replace("0", "7")
    with pytest.raises(LimitError, match="the GPU is not accessible: Not Found"):
        limits.read(unknown, cgroup)


def test_a_node_without_a_driver_has_no_limits(describe: Node, limits: NvmlMemoryLimits, cgroup: Path) -> None:
    """The reason is the library's."""
    describe(failures={"nvmlInitWithFlags": ErrorCode.DRIVER_NOT_LOADED})
    with pytest.raises(LimitError, match=r"NVML cannot be used: Driver Not Loaded"):
        limits.read(UUIDS[0], cgroup)


def test_a_source_of_gpus_answers_each_cgroup_or_says_why_not(
    node: FakeNvml, limits: NvmlMemoryLimits, cgroup: Path, tmp_path: Path
) -> None:
    """One cgroup without an answer, or one card that fails, costs nothing of the others."""
    limits.set(UUIDS[0], cgroup, ONE)
    node.fail(1, GET, ErrorCode.GPU_IS_LOST)
    source = NvmlSource(tmp_path, tmp_path, tmp_path)
    source.read()
    found = source.read_limits([(UUIDS[0], cgroup), (UUIDS[0], cgroup / "gone"), (UUIDS[1], cgroup)])
    assert found[UUIDS[0], cgroup] == LimitReading(ONE, 0)
    assert "There is no such directory" in str(found[UUIDS[0], cgroup / "gone"])
    assert "GPU is lost" in str(found[UUIDS[1], cgroup])

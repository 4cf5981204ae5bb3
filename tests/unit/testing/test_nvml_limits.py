"""Tests of the memory limits of cgroups in `gpushare_plugin.testing.nvml`: what a process can allocate under them."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.gpus.memory_limits import (
    LimitError,
    LimitNotEnforcedError,
    LimitReading,
    LimitRefusedError,
    NoLimitAnswerError,
)
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.testing.cgroups import Cgroups, CgroupTree, real_cgroups
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeGpu, FakeNvml, LimitBackend
from tests.unit.gpus.conftest import Node, describe

__all__ = ["describe"]

SIZE = 10240
BACKENDS: tuple[LimitBackend, ...] = ("misc", "dmem")
Prepare = Callable[..., "Bench"]


def mib(hard: int, soft: int = 0) -> MemoryLimit:
    """Return limits in MiB."""
    return MemoryLimit(hard * MIB, soft * MIB)


class Bench:
    """Two cards, a tree of cgroups, and the limits of both."""

    def __init__(self, nvml: FakeNvml, cgroups: Cgroups) -> None:
        """Set limits as root."""
        self.nvml, self.cgroups = nvml, cgroups
        self._limits = NvmlMemoryLimits(*[cgroups.root / "nowhere"] * 3)

    def set(self, cgroup: Path, limit: MemoryLimit, gpu: int = 0) -> None:
        """Set limits."""
        self._limits.set(self.nvml.gpus[gpu].uuid, cgroup, limit)

    def read(self, cgroup: Path, gpu: int = 0) -> LimitReading:
        """Read limits."""
        return self._limits.read(self.nvml.gpus[gpu].uuid, cgroup)

    def room(self, cgroup: Path | None, gpu: int = 0) -> int:
        """Return the most MiB that a process can allocate in one piece."""
        low, high = 0, 4 * SIZE
        while low < high:
            middle = (low + high + 1) // 2
            if got := self.nvml.allocate(gpu, cgroup, middle):
                got.free()
            low, high = (middle, high) if got else (low, middle - 1)
        return low


@pytest.fixture
def prepare(describe: Node, tmp_path: Path) -> Prepare:
    """Return a function that describes two cards and a tree of cgroups."""
    trees = itertools.count()

    def make(backend: LimitBackend, *, refuses: bool = False, reuses_addresses: bool = False) -> Bench:
        with contextlib.suppress(pynvml.NVMLError_Uninitialized):
            pynvml.nvmlShutdown()  # or the library would answer for the node before
        cards = [FakeGpu(memory_mib=SIZE), FakeGpu(memory_mib=SIZE)]
        nvml = describe(cards, driver_version=DRIVER_WITH_LIMITS, limit_backend=backend, kernel_refuses=refuses)
        controllers = ("cpu", "misc", "dmem") if backend == "dmem" else ("cpu", "misc")
        tree = CgroupTree(tmp_path / str(next(trees)), controllers, nvml.regions, reuses_addresses=reuses_addresses)
        return Bench(nvml, tree)

    return make


@pytest.fixture(params=BACKENDS)
def bench(request: pytest.FixtureRequest, prepare: Prepare) -> Bench:
    """Prepare each backend."""
    return prepare(request.param)


@pytest.fixture(params=[*BACKENDS, "machine"])
def anywhere(request: pytest.FixtureRequest, prepare: Prepare, describe: Node) -> Iterator[Bench]:
    """Prepare each backend with files, and `misc` with cgroups of the machine, where it has any to make."""
    if request.param != "machine":
        yield prepare(request.param)
        return
    with real_cgroups() as cgroups:
        if cgroups is None:
            pytest.skip("no cgroups of version 2 that can be written")
        yield Bench(describe([FakeGpu(memory_mib=SIZE)] * 2, driver_version=DRIVER_WITH_LIMITS), cgroups)


def test_a_process_can_allocate_as_much_as_the_hard_limit_of_its_cgroup(anywhere: Bench) -> None:
    """The limit is one for all processes of the cgroup, on this GPU alone, and its use is told exactly."""
    cgroup, other = anywhere.cgroups.make("kubepods/a"), anywhere.cgroups.make("kubepods/b")
    anywhere.set(cgroup, mib(4096))
    assert anywhere.room(cgroup) == 4096
    first = anywhere.nvml.allocate(0, cgroup, 1000)
    assert first is not None
    assert anywhere.nvml.allocate(0, cgroup, 2000)
    assert anywhere.read(cgroup) == LimitReading(mib(4096), 3000 * MIB)
    assert anywhere.room(cgroup) == 1096
    assert (anywhere.room(cgroup, gpu=1), anywhere.room(other)) == (SIZE, SIZE - 3000)
    first.free()
    assert (anywhere.read(cgroup).used, anywhere.room(cgroup)) == (2000 * MIB, 2096)


def test_a_soft_limit_alone_stops_nobody(bench: Bench) -> None:
    """Memory above the soft limit is borrowed; without MPS nobody is evicted for it."""
    cgroup = bench.cgroups.make("a")
    bench.set(cgroup, MemoryLimit(None, 1024 * MIB))
    assert bench.room(cgroup) == SIZE
    assert bench.read(cgroup).limit == MemoryLimit(None, 1024 * MIB)


def test_limits_can_be_raised_and_removed_while_memory_is_in_use(bench: Bench) -> None:
    """A running process gets what a raised limit allows."""
    cgroup = bench.cgroups.make("a")
    bench.set(cgroup, mib(2048))
    assert bench.nvml.allocate(0, cgroup, 2000)
    bench.set(cgroup, mib(4096))
    assert bench.room(cgroup) == 2096
    bench.set(cgroup, NO_LIMIT)
    assert bench.room(cgroup) == SIZE - 2000
    assert bench.read(cgroup) == LimitReading(NO_LIMIT, 2000 * MIB)


@pytest.mark.parametrize(("backend", "refuses"), [("misc", False), ("dmem", True), ("dmem", False)])
def test_a_limit_below_the_memory_in_use_is_refused_and_leaves_the_limit(
    prepare: Prepare, backend: LimitBackend, *, refuses: bool
) -> None:
    """The driver refuses, or the kernel does, or the kernel keeps what it has without a word."""
    bench = prepare(backend, refuses=refuses)
    cgroup = bench.cgroups.make("a")
    bench.set(cgroup, mib(4096))
    assert bench.nvml.allocate(0, cgroup, 3000)
    with pytest.raises(LimitRefusedError):
        bench.set(cgroup, mib(2048))
    assert bench.read(cgroup) == LimitReading(mib(4096), 3000 * MIB)
    bench.set(cgroup, mib(3000))
    assert bench.room(cgroup) == 0


def test_managed_memory_and_processes_without_cgroup_and_cards_in_mig_mode_are_not_limited(bench: Bench) -> None:
    """Nothing of it counts."""
    cgroup = bench.cgroups.make("a")
    bench.set(cgroup, mib(1024))
    assert bench.nvml.allocate(0, cgroup, 4096, managed=True)
    assert bench.nvml.allocate(0, None, 4096)
    assert bench.read(cgroup).used == 0
    bench.nvml.replace_gpu(1, FakeGpu(memory_mib=SIZE, mig_enabled=True))
    assert bench.nvml.allocate(1, cgroup, 4096)
    with pytest.raises(NoLimitAnswerError):
        bench.read(cgroup, gpu=1)


def test_imported_memory_stays_with_its_exporter(bench: Bench) -> None:
    """It counts once, for the cgroup that allocated it, and as long as anybody has it."""
    cgroup, other = bench.cgroups.make("a"), bench.cgroups.make("b")
    for each in (cgroup, other):
        bench.set(each, mib(1024))
    memory = bench.nvml.allocate(0, cgroup, 1000)
    assert memory is not None
    memory.share()
    assert (bench.read(cgroup).used, bench.read(other).used) == (1000 * MIB, 0)
    memory.free()
    assert bench.read(cgroup).used == 1000 * MIB
    memory.free()
    assert bench.read(cgroup).used == 0


@pytest.mark.parametrize(("backend", "counted"), [("misc", 0), ("dmem", 2000)])
def test_what_was_allocated_before_the_first_limit_counts_with_the_kernel_alone(
    prepare: Prepare, backend: LimitBackend, counted: int
) -> None:
    """The driver's own account begins with the first limit; memory from before is freed without a trace, too."""
    bench = prepare(backend)
    cgroup = bench.cgroups.make("a")
    before = bench.nvml.allocate(0, cgroup, 2000)
    assert before is not None
    bench.set(cgroup, mib(3000))
    assert bench.read(cgroup).used == counted * MIB
    assert bench.room(cgroup) == 3000 - counted
    before.free()
    assert (bench.read(cgroup).used, bench.room(cgroup)) == (0, 3000)


@pytest.mark.parametrize(("backend", "room"), [("misc", 4096), ("dmem", 1024)])
def test_a_parent_bounds_limited_children_with_the_kernel_alone(
    prepare: Prepare, backend: LimitBackend, room: int
) -> None:
    """The driver's own account knows only the nearest limits; the kernel's counts at every level."""
    bench = prepare(backend)
    child = bench.cgroups.make("pod/container")
    bench.set(child.parent, mib(1024))
    bench.set(child, mib(4096))
    assert bench.room(child) == room


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_limits_of_a_parent_hold_for_children_together(prepare: Prepare, backend: LimitBackend) -> None:
    """Children without own limits share those of the parent; the driver's own answer about a child has them, too.

    A child with own files of the kernel's controller has its own answer: no limit.
    """
    bench = prepare(backend)
    one, two = bench.cgroups.make("pod/one"), bench.cgroups.make("pod/two")
    bench.set(one.parent, mib(3000))
    assert bench.nvml.allocate(0, one, 2000)
    assert bench.room(two) == 1000
    own = LimitReading(NO_LIMIT, 0)
    assert bench.read(two) == (own if backend == "dmem" else LimitReading(mib(3000), 2000 * MIB))


def test_removing_limits_in_the_drivers_account_leaves_no_limit_and_hides_those_above(prepare: Prepare) -> None:
    """No limit is an entry like any other."""
    bench = prepare("misc")
    child = bench.cgroups.make("pod/container")
    bench.set(child.parent, mib(1024))
    bench.set(child, NO_LIMIT)
    assert bench.read(child).limit == NO_LIMIT
    assert bench.room(child) == SIZE


def test_a_cgroup_without_the_kernels_files_cannot_be_limited_and_answers_for_an_ancestor(prepare: Prepare) -> None:
    """The root has no files of limits; where the controller is not enabled, there are none, either."""
    bench = prepare("dmem")
    bare = bench.cgroups.make("pod/container", without=["dmem"])
    with pytest.raises(NoLimitAnswerError):
        bench.set(bare, mib(1024))
    with pytest.raises(NoLimitAnswerError):
        bench.read(bare)
    inner = bench.cgroups.make("slice")
    bench.set(inner, mib(1024))
    below = bench.cgroups.make("slice/below", without=["dmem"])
    assert bench.read(below).limit == mib(1024)
    assert bench.room(below) == 1024


def test_the_root_cannot_be_limited(bench: Bench) -> None:
    """Neither by the driver nor by the kernel; without any limit, the answer is the one without a backend."""
    for ask in (lambda: bench.set(bench.cgroups.root, mib(1024)), lambda: bench.read(bench.cgroups.root)):
        with pytest.raises(NoLimitAnswerError):
            ask()


def test_a_new_cgroup_at_the_address_of_an_old_one_has_the_old_limits(prepare: Prepare) -> None:
    """The driver is not told when a cgroup goes; setting no limit at the start of a container puts that right."""
    bench = prepare("misc", reuses_addresses=True)
    bench.set(bench.cgroups.make("old"), mib(1024))
    bench.cgroups.remove(bench.cgroups.root / "old")
    new = bench.cgroups.make("new")
    assert bench.room(new) == 1024
    bench.set(new, NO_LIMIT)
    assert bench.room(new) == SIZE


def test_a_new_cgroup_at_an_address_of_its_own_has_no_limits(bench: Bench) -> None:
    """Whatever its name is, and whatever limits others had."""
    bench.set(bench.cgroups.make("a"), mib(1024))
    bench.cgroups.remove(bench.cgroups.root / "a")
    assert bench.room(bench.cgroups.make("a")) == SIZE


def test_soft_limits_add_up_in_ancestors_and_a_removed_cgroup_leaves_its_part(prepare: Prepare) -> None:
    """The driver adds the change of each soft limit; it does not see that a cgroup is removed."""
    bench = prepare("dmem")
    one, two = bench.cgroups.make("pods/pod/one"), bench.cgroups.make("pods/pod/two")
    bench.set(one, mib(2048, 1024))
    bench.set(two, mib(2048, 512))
    above = [bench.cgroups.root / "pods/pod", bench.cgroups.root / "pods"]
    assert [bench.read(each).limit.soft // MIB for each in above] == [1536, 1536]
    bench.set(one, mib(2048, 256))
    assert [bench.read(each).limit.soft // MIB for each in above] == [768, 768]
    bench.set(one, mib(2048))
    bench.cgroups.remove(one)
    bench.cgroups.remove(two)
    assert [bench.read(each).limit.soft // MIB for each in above] == [512, 512]


def test_hard_limits_alone_leave_nothing_in_ancestors(prepare: Prepare) -> None:
    """With a soft limit of 0 nothing is written above the cgroup."""
    bench = prepare("dmem")
    cgroup = bench.cgroups.make("pods/pod/one")
    before = {file: file.read_text() for file in bench.cgroups.root.rglob("*") if file.is_file()}
    bench.set(cgroup, mib(2048))
    after = {file: file.read_text() for file in bench.cgroups.root.rglob("*") if file.is_file()}
    assert [file for file, text in after.items() if before[file] != text] == [cgroup / "dmem.max"]


def test_another_load_of_the_driver_forgets_all_limits(bench: Bench) -> None:
    """The driver's table goes with the GPU, and the kernel's numbers go with the memory that the driver registers."""
    cgroup = bench.cgroups.make("pod/a")
    bench.set(cgroup, mib(2048, 1024))
    bench.nvml.reload_driver(bench.cgroups.root)
    assert bench.room(cgroup) == SIZE


def test_where_the_controller_is_not_enabled_a_limit_is_set_and_read_and_not_enforced(prepare: Prepare) -> None:
    """The driver takes limits for any cgroup, but counts processes where the controller does: in an ancestor."""
    bench = prepare("misc")
    bench.cgroups.make("pod")
    bare = bench.cgroups.make("pod/container", without=["misc"])
    with pytest.raises(LimitNotEnforcedError, match=f"not enforced: .* counts its processes in {bare.parent}"):
        bench.set(bare, mib(1024))
    assert bench.room(bare) == SIZE
    bench.set(bare, NO_LIMIT)
    bench.set(bare.parent, mib(2048))
    assert bench.room(bare) == 2048


NAMES = ("a", "a/b", "a/b/c", "a/d", "e")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.sampled_from(NAMES), st.sampled_from([None, 0, 1, 2, 3, 5]), st.integers(0, 2)),
        st.tuples(st.just("allocate"), st.sampled_from(NAMES), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("free"), st.just(""), st.integers(0, 5), st.just(0)),
    ),
    max_size=25,
)


class Model:
    """What the sources say in one sentence each, with amounts as whole numbers of GiB."""

    def __init__(self, backend: LimitBackend) -> None:
        """Begin without limits."""
        self.nested = backend == "dmem"
        self.hard: dict[str, int | None] = {}
        self.soft = dict.fromkeys(NAMES, 0)
        self.held: list[tuple[str, int, list[str]]] = []

    def used(self, name: str) -> int:
        """Return what counts for the limits of a cgroup."""
        return sum(size for _, size, levels in self.held if name in levels)

    def counting(self, name: str) -> list[str]:
        """Return the cgroups whose limits count for a process: all above with the kernel, else the nearest limited."""
        above = ["/".join(part) for part in itertools.accumulate([each] for each in name.split("/"))][::-1]
        return above if self.nested else [each for each in above if each in self.hard][:1]

    def set(self, name: str, hard: int | None, soft: int) -> bool:
        """Set limits, and return whether that is possible."""
        if hard is not None and (soft > hard or self.used(name) > hard):
            return False
        self.hard[name] = hard
        change = soft - self.soft[name]
        above = [each for each in NAMES if name.startswith(f"{each}/")] if self.nested else []
        for each in (name, *above):
            self.soft[each] += change
        return True

    def allocate(self, name: str, size: int) -> bool:
        """Allocate, and return whether that is possible."""
        levels = self.counting(name)
        limits = [(self.hard.get(each), self.used(each)) for each in levels]
        fits = all(hard is None or used + size <= hard for hard, used in limits)
        fits = fits and sum(each for _, each, _ in self.held) + size <= SIZE // 1024
        if fits:
            self.held.append((name, size, levels))
        return fits


@pytest.mark.parametrize("backend", BACKENDS)
@given(steps=steps)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_account_is_that_of_a_simple_model(
    prepare: Prepare, backend: LimitBackend, steps: list[tuple[str, str, int | None, int]]
) -> None:
    """Whatever is set, allocated and freed: what is possible, and what is told of each cgroup, is as in the model."""
    bench, model = prepare(backend, refuses=True), Model(backend)
    cgroups = {name: bench.cgroups.make(name) for name in NAMES}
    held = []
    for what, name, number, soft in steps:
        if what == "set":
            limit = MemoryLimit(None if number is None else number * 1024 * MIB, soft * 1024 * MIB)
            assert possible(bench.set, cgroups[name], limit) == model.set(name, number, soft)
        elif what == "allocate" and number is not None:
            got = bench.nvml.allocate(0, cgroups[name], number * 1024)
            assert (got is not None) == model.allocate(name, number)
            held += [got] if got else []
        elif what == "free" and number is not None and number < len(held):
            held.pop(number).free()
            model.held.pop(number)
    for name in NAMES:
        if model.nested or name in model.hard:
            hard = model.hard.get(name)
            found = MemoryLimit(None if hard is None else hard * 1024 * MIB, model.soft[name] * 1024 * MIB)
            assert bench.read(cgroups[name]) == LimitReading(found, model.used(name) * 1024 * MIB)


def possible(what: Callable[..., None], *arguments: object) -> bool:
    """Return whether limits are taken."""
    try:
        what(*arguments)
    except LimitError:
        return False
    return True

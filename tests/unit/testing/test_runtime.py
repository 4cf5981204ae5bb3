"""Tests of `gpushare_plugin.testing.runtime`: what a container can allocate, by version of the hook and by backend."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.core.driver_limits import NO_LIMIT, MemoryLimit
from gpushare_plugin.gpus.cgroups import Kubepods
from gpushare_plugin.gpus.containers import look_up, now
from gpushare_plugin.gpus.nvml.memory_limits import NvmlMemoryLimits
from gpushare_plugin.testing.cgroups import CgroupTree, PodCgroups, RealCgroups, real_cgroups
from gpushare_plugin.testing.hosts import GPUS, specification
from gpushare_plugin.testing.kubelet import Container, Mount, Pod, StartedContainer
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeGpu, FakeNvml, LimitBackend
from gpushare_plugin.testing.runtime import (
    ContainerError,
    HookVersion,
    Mode,
    RunningContainer,
    Runtime,
    UnresolvableDeviceError,
)
from tests.unit.gpus.conftest import Node, describe

__all__ = ["describe"]

REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
ALL = GPUS[0].memory_mib
BOTH = {REQUEST: "0", LIMIT: "4096"}
DEVICE = f"nvidia.com/gpu={GPUS[0].uuid}"
BACKENDS: tuple[LimitBackend, ...] = ("misc", "dmem")
WITH_HOOK = [each for each in HookVersion if each is not HookVersion.NONE]
Prepare = Callable[..., "Bench"]


class Bench:
    """A node whose runtime starts containers of one pod."""

    def __init__(self, nvml: FakeNvml, pods: PodCgroups, runtime: Runtime) -> None:
        """Begin without containers."""
        self.nvml, self.pods, self.runtime = nvml, pods, runtime
        self.pod = Pod("pod", [Container("main")])
        self.limits = NvmlMemoryLimits(*[pods.cgroups.root / "nowhere"] * 3)

    def start(self, environment: Mapping[str, str], *devices: str, image: Mapping[str, str] | None = None) -> int:
        """Start a container with these variables of the plugin, and return what it can allocate of the first card."""
        return self.runtime.room(self.started(environment, *devices, image=image), 0)

    def started(
        self, environment: Mapping[str, str], *devices: str, image: Mapping[str, str] | None = None
    ) -> RunningContainer:
        """Start a container with these variables, and with the first card unless other devices are named."""
        names = devices or (DEVICE,)
        return self.runtime.start(self.pod, StartedContainer("main", environment, (), (), {}, names, {}), image=image)

    def limit(self, cgroup: Path, gpu: int = 0) -> MemoryLimit:
        """Return the limits of a cgroup."""
        return self.limits.read(self.nvml.gpus[gpu].uuid, cgroup).limit


@pytest.fixture
def prepare(describe: Node, tmp_path: Path) -> Prepare:
    """Return a function that makes a node with two cards, and specifications with the hook."""

    def make(  # noqa: PLR0913 - the parts of a node
        hook: HookVersion = HookVersion.LENIENT,
        backend: LimitBackend = "misc",
        *,
        pods: Callable[[CgroupTree], PodCgroups] = PodCgroups,
        mode: Mode = "cdi",
        driver: str = DRIVER_WITH_LIMITS,
        root: str = "",
        reuses_addresses: bool = False,
    ) -> Bench:
        nvml = describe(GPUS, driver_version=driver, limit_backend=backend)
        controllers = ("cpu", "misc", "dmem") if backend == "dmem" else ("cpu", "misc")
        tree = CgroupTree(tmp_path / "cgroup", controllers, nvml.regions, reuses_addresses=reuses_addresses)
        (tmp_path / "cdi").mkdir()
        (tmp_path / "cdi/nvidia.json").write_text(specification(limits=True, root=root))
        kubepods = pods(tree)
        runtime = Runtime(tmp_path / "run", kubepods, nvml, hook=hook, mode=mode, cdi=[tmp_path / "cdi"])
        return Bench(nvml, kubepods, runtime)

    return make


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("hook", WITH_HOOK)
def test_with_both_variables_the_limit_holds_with_each_version(
    prepare: Prepare, hook: HookVersion, backend: LimitBackend
) -> None:
    """A container can allocate its share and no more, and leaves nothing behind in the cgroups above."""
    bench = prepare(hook, backend)
    container = bench.started(BOTH)
    assert bench.limit(container.cgroup) == MemoryLimit(4096 * MIB)
    assert bench.runtime.room(container, 0) == 4096
    assert bench.runtime.allocate(container, 0, 4000)
    assert bench.runtime.allocate(container, 0, 97) is None
    assert bench.runtime.room(container, 1) == ALL
    bench.runtime.stop(container)
    assert not container.cgroup.exists()
    for above in bench.pods.cgroups.root.rglob("dmem.*"):
        assert {line.split()[1] for line in above.read_text().splitlines()} <= {"0", "max", str(ALL * MIB)}


@pytest.mark.parametrize(
    ("environment", "rooms"),
    [
        ({LIMIT: "4096"}, {"draft": ALL, "both": ALL, "either": 4096, "lenient": 4096}),
        ({REQUEST: "4096"}, {"draft": ALL, "both": ALL, "either": ALL, "lenient": ALL}),
        ({f"{REQUEST}S": "0", f"{LIMIT}S": "4096"}, {"draft": 4096, "both": ALL, "either": ALL, "lenient": ALL}),
        ({**BOTH, f"{LIMIT}S": "2048"}, {"draft": 2048, "both": 4096, "either": 4096, "lenient": 4096}),
        ({}, dict.fromkeys(["draft", "both", "either", "lenient"], ALL)),
        (BOTH, {"none": ALL}),
    ],
)
def test_variables_that_a_version_does_not_take_limit_nothing_without_a_word(
    prepare: Prepare, environment: Mapping[str, str], rooms: Mapping[str, int]
) -> None:
    """One of both is not enough for all versions, plural names are for one, and an older toolkit has no hook."""
    bench = prepare()
    found = {}
    for hook in rooms:
        bench.runtime.hook = HookVersion(hook)
        found[hook] = bench.start(environment)
    assert found == rooms


def test_one_variable_alone_stands_for_both_or_for_no_hard_limit(prepare: Prepare) -> None:
    """In the versions that take one of both: a limit guarantees as much, and a request caps nothing."""
    bench = prepare()
    assert bench.limit(bench.started({LIMIT: "4096"}).cgroup) == MemoryLimit(4096 * MIB, 4096 * MIB)
    assert bench.limit(bench.started({REQUEST: "4096"}).cgroup) == MemoryLimit(None, 4096 * MIB)


@pytest.mark.parametrize("hook", WITH_HOOK)
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({**BOTH, LIMIT: "4Gi"}, "failed to parse"),
        ({**BOTH, LIMIT: ""}, "failed to parse"),
        ({**BOTH, LIMIT: "-1"}, "failed to parse"),
        ({**BOTH, LIMIT: str(ALL + 1)}, "failed to set memory limits .*: 2"),
        ({REQUEST: "4097", LIMIT: "4096"}, "memory request .4097 MiB. exceeds memory limit"),
    ],
)
def test_a_value_that_cannot_be_blocks_the_container(
    prepare: Prepare, hook: HookVersion, environment: Mapping[str, str], reason: str
) -> None:
    """The runtime does not create the container, says why, and leaves nothing of it."""
    bench = prepare(hook)
    with pytest.raises(ContainerError, match=reason):
        bench.start(environment)
    assert not [each for each in bench.pods.cgroups.root.rglob("*.scope") if each.is_dir()]
    assert [each.name for each in bench.runtime.procfs.iterdir()] == ["self"]


@pytest.mark.parametrize("hook", WITH_HOOK)
def test_an_older_driver_blocks_a_container_with_the_variables_alone(prepare: Prepare, hook: HookVersion) -> None:
    """The library has no such function; a container without the variables starts."""
    bench = prepare(hook, driver="580.95.05")
    with pytest.raises(ContainerError, match="undefined symbol: nvmlDeviceSetMemoryLimits_v1"):
        bench.start(BOTH)
    assert bench.start({}) == ALL


def test_a_driver_root_without_the_library_blocks_a_container(prepare: Prepare, tmp_path: Path) -> None:
    """The library that counts is the one below the root that the specification names."""
    bench = prepare(root=str(tmp_path / "driver"))
    with pytest.raises(ContainerError, match=r"failed to locate libnvidia-ml\.so\.1"):
        bench.start(BOTH)
    folder = tmp_path / "driver/usr/lib64"
    folder.mkdir(parents=True)
    (folder / "libnvidia-ml.so.1").symlink_to(bench.nvml.library)
    assert bench.start(BOTH) == 4096


def test_cgroups_of_version_1_block_a_container_with_the_variables_alone(prepare: Prepare) -> None:
    """Their root has no list of controllers."""
    bench = prepare(pods=lambda tree: PodCgroups(RealCgroups(tree.root / "version-1")))
    with pytest.raises(ContainerError, match="only supported in cgroup v2"):
        bench.start(BOTH)
    assert bench.start({}) == ALL


@pytest.mark.parametrize("hook", WITH_HOOK)
def test_a_specification_that_cannot_be_read_blocks_or_is_passed_over(prepare: Prepare, hook: HookVersion) -> None:
    """The last version starts the container without a limit; those before start none, whatever its variables are."""
    bench = prepare(hook)
    bench.runtime.shows_bundles = False
    if hook is HookVersion.LENIENT:
        assert bench.start(BOTH) == ALL
        return
    for environment in (BOTH, {}):
        with pytest.raises(ContainerError, match="failed to load OCI container spec"):
            bench.start(environment)


@pytest.mark.parametrize("hook", WITH_HOOK)
@pytest.mark.parametrize(
    "pods",
    [
        lambda tree: PodCgroups(tree, "cgroupfs"),
        lambda tree: PodCgroups(tree, above="kubelet"),
        lambda tree: PodCgroups(tree, prefix="crio", inner="container"),
    ],
    ids=["cgroupfs", "nested", "crun"],
)
def test_the_limit_is_on_the_cgroup_of_the_process(
    prepare: Prepare, hook: HookVersion, pods: Callable[[CgroupTree], PodCgroups]
) -> None:
    """Whatever driver and runtime call it; the draft alone looks into the specification, and knows systemd's form."""
    bench = prepare(hook, pods=pods)
    if hook is HookVersion.DRAFT and bench.pods.driver == "cgroupfs":
        with pytest.raises(ContainerError, match="expected slice:prefix:name"):
            bench.start(BOTH)
        return
    container = bench.started(BOTH)
    assert bench.runtime.room(container, 0) == 4096
    assert Kubepods.below(bench.pods.cgroups.root).container(bench.pod.uid, container.id) == container.cgroup


def test_several_cards_get_the_same_limit_each(prepare: Prepare) -> None:
    """There is one hook a card, and one pair of variables for all."""
    bench = prepare()
    container = bench.started(BOTH, DEVICE, "nvidia.com/gpu=1")
    assert [bench.runtime.room(container, gpu) for gpu in (0, 1)] == [4096, 4096]
    assert bench.runtime.room(bench.started(BOTH, "nvidia.com/gpu=all"), 1) == 4096


def test_a_variable_of_the_image_loses_and_one_of_a_cdi_device_wins(prepare: Prepare) -> None:
    """What the kubelet gives comes after the image, and what specifications give comes last."""
    bench = prepare()
    container = bench.started({**BOTH, "NVIDIA_VISIBLE_DEVICES": "all"}, image={LIMIT: "1024", "A": "b"})
    assert bench.runtime.room(container, 0) == 4096
    assert (container.environment["A"], container.environment["NVIDIA_VISIBLE_DEVICES"]) == ("b", "void")


def test_a_device_that_no_specification_has_blocks_the_container(prepare: Prepare) -> None:
    """As the runtime says it."""
    with pytest.raises(UnresolvableDeviceError, match=r"unresolvable CDI devices nvidia\.com/gpu=7"):
        prepare().start(BOTH, "nvidia.com/gpu=7")


@pytest.mark.parametrize(("mode", "room"), [("jit-cdi", 4096), ("legacy", ALL), ("cdi", ALL)])
def test_without_named_devices_just_in_time_cdi_alone_runs_the_hook(prepare: Prepare, mode: Mode, room: int) -> None:
    """The nvidia runtime makes the specification for the cards that a variable, or a mount, names."""
    bench = prepare(mode=mode)
    plain = StartedContainer("main", {**BOTH, "NVIDIA_VISIBLE_DEVICES": GPUS[0].uuid}, (), (), {}, (), {})
    container = bench.runtime.start(bench.pod, plain)
    assert [bench.runtime.room(container, gpu) for gpu in (0, 1)] == [room, ALL]
    mount = Mount(f"/var/run/nvidia-container-devices/{GPUS[1].uuid}", "/dev/null", read_only=True)
    mounted = StartedContainer("main", BOTH, (mount,), (), {}, (), {})
    container = bench.runtime.start(bench.pod, mounted)
    assert [bench.runtime.room(container, gpu) for gpu in (0, 1)] == [ALL, room]


def test_a_container_without_limit_can_inherit_the_limit_of_one_that_ended(prepare: Prepare) -> None:
    """Nothing undoes a limit at the end, so no limit has to be set at the start, too."""
    bench = prepare(reuses_addresses=True)
    bench.runtime.stop(bench.started(BOTH))
    container = bench.started({})
    assert bench.runtime.room(container, 0) == 4096
    bench.limits.set(GPUS[0].uuid, container.cgroup, NO_LIMIT)
    assert bench.runtime.room(container, 0) == ALL


def test_a_soft_limit_stays_in_the_cgroups_above_when_a_container_ends(prepare: Prepare) -> None:
    """The hook has no counterpart at the end; with a soft limit of 0 there is nothing to stay."""
    bench = prepare(backend="dmem")
    container = bench.started({REQUEST: "1024", LIMIT: "4096"})
    above = container.cgroup.parent.parent
    bench.runtime.remove_pod(bench.pod)
    assert not container.cgroup.parent.exists()
    assert bench.limit(above).soft == 1024 * MIB


def test_the_processes_of_containers_are_known_by_their_cgroup(prepare: Prepare) -> None:
    """The described `/proc` is read as that of a host."""
    bench = prepare()
    container = bench.started(BOTH)
    found = look_up([container.pid], now(), bench.runtime.procfs)[container.pid].owner
    assert (found.pod_uid, found.container_id) == (bench.pod.uid, container.id)


@pytest.fixture
def on_the_machine(describe: Node, tmp_path: Path) -> Iterator[Bench]:
    """Make a node whose containers have cgroups of this machine."""
    with real_cgroups() as cgroups:
        if cgroups is None:
            pytest.skip("no cgroups of version 2 that can be written")
        pods = PodCgroups(cgroups)
        nvml = describe([FakeGpu(uuid=gpu.uuid) for gpu in GPUS], driver_version=DRIVER_WITH_LIMITS)
        (tmp_path / "nvidia.json").write_text(specification(limits=True))
        yield Bench(nvml, pods, Runtime(tmp_path / "run", pods, nvml, cdi=[tmp_path]))


def test_limits_hold_for_cgroups_of_the_machine(on_the_machine: Bench) -> None:
    """As for described ones; a container that is started again has a cgroup, and a limit, of its own."""
    first = on_the_machine.started(BOTH)
    assert on_the_machine.runtime.room(first, 0) == 4096
    on_the_machine.runtime.stop(first)
    again = on_the_machine.started({**BOTH, LIMIT: "2048"})
    assert on_the_machine.runtime.room(again, 0) == 2048
    assert on_the_machine.start({}) == ALL

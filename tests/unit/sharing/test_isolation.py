"""Tests of what containers receive so that they stay within their share."""

import re
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from generators.isolation_table import CASES, HAMI, MPS, PAGE, Case, page
from gpushare_plugin.base.errors import PlacementError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema.names import CORES
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.grant import Grant, Mount, Recipient
from gpushare_plugin.core.namespaces import NAMESPACE_NAME, ContainerNamespace, namespace_name
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.ledger.node_record import resource_record
from gpushare_plugin.mps.exchange import MpsRoot
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.ways.injection import Injection
from tests.nodes import a_gpu, a_node
from tests.unit.sharing.settings import memory, planned, settings, time_slicing

NODE = a_node(40960)
STRATEGIES = ["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]


def resource_of(name: str, resources: tuple[Resource, ...]) -> Resource:
    """Return the resource of a name."""
    (resource,) = [resource for resource in resources if resource.name == name]
    return resource


def received(case: Case, strategy: str) -> Grant:
    """Return what a container gets, chosen and allocated as the kubelet would."""
    config = settings(sharing=yaml.safe_load(case.sharing), flags={"plugin": {"deviceListStrategy": strategy}})
    effective = EffectiveConfig(config, cgpu_disabled=case.cgpu_disabled)
    decided = plan(effective, NODE, driver_limits=DriverLimits(agent=True))
    assert decided.problems == ()
    resource = resource_of(case.resource, decided.resources)
    return resource.allocate(resource.prefer(list(resource.units), [], case.count))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sharing}, {case.resource}, {case.cgpu_disabled}")
def test_a_container_receives_exactly_what_the_table_says(case: Case, strategy: str) -> None:
    """For every way to share, every isolation and every way to inject: the GPU, what isolates, and nothing else.

    Only compute brings no GPU: that comes with the memory of the same container.
    """
    flags = settings(flags={"plugin": {"deviceListStrategy": strategy}}).flags
    gpu = Injection(flags).grant([a_gpu(0)]) if case.resource != CORES else Grant()
    expected = replace(gpu, environment=gpu.environment | case.environment, mounts=[*gpu.mounts, *case.mounts])
    assert received(case, strategy) == expected


def test_the_page_shows_the_table() -> None:
    """The documentation says what containers receive today; `make generate` writes it."""
    assert PAGE.read_text() == page(), "run make generate"


def test_every_container_has_a_cache_of_its_own() -> None:
    """Two containers of a pod that share /tmp still count apart under HAMi-core; a restarted one finds its own."""
    resource = resource_of("aliyun.com/gpu-mem", planned(NODE, sharing=memory(isolation="hami-core")).resources)
    ids = list(resource.units)
    first, other, again = (
        resource.allocate(held).environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
        for held in (ids[:5], ids[5:10], ids[4::-1])
    )
    assert first == again
    assert first != other


def test_paths_of_the_library_and_of_the_daemon_are_configurable() -> None:
    """`hamiCore.libraryDirectory` and `flags.mpsRoot` are paths of the host; in the container nothing changes."""
    flags, library = {"mpsRoot": "/srv/mps"}, {"libraryDirectory": "/opt/hami"}
    sharing = {
        "memory": {
            "resources": [
                {"name": "a.io/mps", "devices": [0], "isolation": "mps"},
                {"name": "a.io/hami", "devices": [1], "isolation": "hami-core"},
            ]
        }
    }
    decided = planned(a_node(40960, 40960), flags=flags, hamiCore=library, sharing=sharing)
    mps, hami = (resource.allocate([next(iter(resource.units))]).mounts for resource in decided.resources)
    assert mps == [replace(each, host_path=each.host_path.replace("/run/nvidia/mps", "/srv/mps")) for each in MPS]
    assert hami == [replace(each, host_path=each.host_path.replace("/usr/local/vgpu", "/opt/hami")) for each in HAMI]


def test_the_smallest_share_still_gets_compute() -> None:
    """One unit of many is no percent, and no percent would be no limit or an error: at least one is given."""
    decided = planned(a_node(143_000), sharing=memory(unit="256MiB", isolation="mps"))
    resource = resource_of("aliyun.com/gpu-mem", decided.resources)
    grant = resource.allocate([next(iter(resource.units))])
    assert grant.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"


def test_a_request_for_all_units_gets_all_of_the_compute() -> None:
    """The rest of a GPU beside whole units is nobody's: a container with all units has the whole GPU."""
    resource = resource_of("aliyun.com/gpu-mem", planned(a_node(15095), sharing=memory(isolation="mps")).resources)
    grant = resource.allocate(list(resource.units))
    assert grant.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"


def test_replicas_of_several_gpus_have_a_limit_on_each() -> None:
    """The limits come in the order the container counts its GPUs in, which is that of the host."""
    sliced = time_slicing({"name": "nvidia.com/gpu", "replicas": 4, "isolation": "hami-core"})
    (resource,) = planned(a_node(40960, 16000), sharing=sliced).resources
    environment = resource.allocate([f"{a_gpu(1).uuid}::0", f"{a_gpu(0).uuid}::3"]).environment
    assert (environment["CUDA_DEVICE_MEMORY_LIMIT_0"], environment["CUDA_DEVICE_MEMORY_LIMIT_1"]) == ("10240m", "4000m")
    assert environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "10240,4000"


def test_a_second_replica_of_a_gpu_adds_nothing() -> None:
    """As with time slicing: more replicas of a GPU are no more of it."""
    sliced = time_slicing({"name": "nvidia.com/gpu", "replicas": 4, "isolation": "hami-core"})
    (resource,) = planned(NODE, sharing=sliced).resources
    ids = list(resource.units)
    one, two = resource.allocate(ids[:1]), resource.allocate(ids[:2])
    assert one.environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == two.environment["CUDA_DEVICE_MEMORY_LIMIT_0"]


def test_mps_refuses_several_replicas_unless_told_otherwise() -> None:
    """As NVIDIA's plugin does."""
    entry = {"name": "nvidia.com/gpu", "replicas": 4}
    (strict,) = planned(NODE, sharing={"mps": {"resources": [entry]}}).resources
    with pytest.raises(PlacementError, match="failRequestsGreaterThanOne"):
        strict.allocate(list(strict.units)[:2])
    (lenient,) = planned(NODE, sharing={"mps": {"resources": [entry], "failRequestsGreaterThanOne": False}}).resources
    assert lenient.allocate(list(lenient.units)[:2]).mounts == list(MPS)


def test_a_whole_gpu_under_the_name_of_replicas_is_not_limited() -> None:
    """A GPU of its own needs no limit and no daemon; one request never mixes the two."""
    sharing = {
        "mps": {
            "resources": [{"name": "nvidia.com/gpu", "replicas": 4, "devices": [0]}],
            "failRequestsGreaterThanOne": False,
        }
    }
    (resource,) = planned(a_node(40960, 40960), sharing=sharing).resources
    whole = resource.allocate([a_gpu(1).uuid])
    assert (list(whole.environment), whole.mounts) == (["NVIDIA_VISIBLE_DEVICES"], [])
    with pytest.raises(PlacementError, match="request 1"):
        resource.allocate([a_gpu(1).uuid, f"{a_gpu(0).uuid}::0"])


MIB = st.integers(4096, 300_000)
WAYS = st.one_of(
    st.fixed_dictionaries(
        {
            "isolation": st.sampled_from(["none", "mps", "hami-core"]),
            "unit": st.sampled_from(["GiB", "256MiB", "3GiB", "1000MiB"]),
        }
    ).map(lambda entry: memory(**entry)),
    st.integers(2, 48).map(lambda count: {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": count}]}}),
    st.integers(2, 100).map(
        lambda count: time_slicing({"name": "nvidia.com/gpu", "replicas": count, "isolation": "hami-core"})
    ),
    st.dictionaries(st.integers(1, 40), st.integers(1, 10), min_size=1, max_size=4).map(
        lambda sizes: {
            "mps": {"sizes": [{"slices": [{"size": f"{size}gb", "count": count} for size, count in sizes.items()]}]}
        }
    ),
)


@given(MIB, WAYS)
def test_the_limits_on_a_gpu_never_add_up_to_more_than_it_has(mib: int, sharing: dict[str, object]) -> None:
    """Whatever the GPU and however it is cut: the containers of a full GPU cannot want more than its usable memory."""
    decided = planned(a_node(mib), sharing=sharing)
    if decided.problems:
        return
    limits = [
        int(resource.allocate([id_]).environment["GPUSHARE_MEMORY_LIMIT_MIB"])
        for resource in decided.resources
        for id_ in resource.units
    ]
    assert limits
    assert min(limits) > 0
    assert sum(limits) <= mib


@given(MIB, st.integers(1, 40), st.sampled_from(["mps", "hami-core"]))
def test_no_variable_allows_more_than_the_share(mib: int, units: int, isolation: str) -> None:
    """The MiB told, the limits of the isolation and the hints to frameworks are one and the same amount."""
    decided = planned(a_node(mib), sharing=memory(isolation=isolation, frameworkHints=True))
    (resource,) = decided.resources
    ids = list(resource.units)[:units]
    environment = resource.allocate(ids).environment
    limit = len(ids) * 1024
    assert environment["GPUSHARE_MEMORY_LIMIT_MIB"] == str(limit)
    enforced = {"mps": ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={limit}M")}
    name, value = enforced.get(isolation, ("CUDA_DEVICE_MEMORY_LIMIT_0", f"{limit}m"))
    assert environment[name] == value
    # Under HAMi-core, JAX sees the limit as the memory of the GPU, of which a fraction would be far less.
    if isolation == "mps":
        assert 0 < Fraction(environment["XLA_PYTHON_CLIENT_MEM_FRACTION"]) * mib <= limit
    else:
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in environment
    assert environment["CUPY_GPU_MEMORY_LIMIT"] == str(limit * 1024 * 1024)


@pytest.mark.parametrize(
    ("settings", "limits"),
    [
        (
            {"isolation": "mps", "allowMultiGPUShares": True},
            {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M,1=3072M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "7"},
        ),
        (
            {"isolation": "hami-core"},
            {
                "CUDA_DEVICE_MEMORY_LIMIT_0": "3072m",
                "CUDA_DEVICE_MEMORY_LIMIT_1": "3072m",
                "CUDA_DEVICE_SM_LIMIT": "7",
            },
        ),
    ],
)
def test_memory_of_several_gpus_has_a_limit_on_each(settings: dict[str, Any], limits: dict[str, str]) -> None:
    """A split that was promised is limited GPU by GPU; variables with one value allow no more than any GPU does."""
    nodes = a_node(40960, 20480)
    (resource,) = planned(nodes, sharing=memory(**settings, frameworkHints=True)).resources
    ids = [unit.id for units in resource.units.by_gpu.values() for unit in units[:3]]
    environment = resource.allocate(ids, Recipient(6, promised=True)).environment
    assert limits.items() <= environment.items()
    assert environment["GPUSHARE_MEMORY_LIMIT_MIB"] == "3072,3072"
    assert environment["CUPY_GPU_MEMORY_LIMIT"] == str(3 * 1024**3)
    fraction = "0.075000" if settings["isolation"] == "mps" else None
    assert environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION") == fraction
    with pytest.raises(PlacementError, match="a share cannot span GPUs"):
        resource.allocate(ids, Recipient(6))


def test_a_share_on_several_gpus_is_refused_under_mps() -> None:
    """MPS drops all limits of a process that sees fewer GPUs than the list of its limits names.

    So even a promise of several GPUs is refused, with the config key that accepts the risk; one GPU is granted.
    """
    nodes = a_node(40960, 40960)
    (resource,) = planned(nodes, sharing=memory(isolation="mps")).resources
    first, second = ([unit.id for unit in units[:3]] for units in resource.units.by_gpu.values())
    with pytest.raises(PlacementError, match=r"sharing\.memory\.resources\[\]\.allowMultiGPUShares: true"):
        resource.allocate([*first, *second], Recipient(6, promised=True))
    assert resource.allocate(first, Recipient(3, promised=True)).environment["NVIDIA_VISIBLE_DEVICES"]
    described = resource_record(resource)
    assert described is not None
    assert described.single_gpu


PROTOCOL_3 = {"mpsProtocol": 3}


def test_a_namespace_has_the_limits_of_the_share() -> None:
    """With protocol 3 a container sees the folder of its namespace only, and no limit of memory in its environment."""
    (resource,) = planned(NODE, sharing=memory(isolation="mps"), flags=PROTOCOL_3).resources
    ids = list(resource.units)[:10]
    grant = resource.allocate(ids)
    assert grant.namespace == ContainerNamespace(namespace_name(ids), 10240, 25)
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in grant.environment
    assert grant.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    leaf = MpsRoot(Path("/run/nvidia/mps")).namespace(namespace_name(ids))
    assert Mount("/mps/pipe", str(leaf), read_only=True) in grant.mounts
    assert resource.granted(ids) == grant


def test_the_name_of_a_namespace_is_that_of_its_units() -> None:
    """Whatever the order of the IDs; the name and the path of its socket are what MPS and the kernel take."""
    name = namespace_name(["b", "a"])
    assert name == namespace_name(["a", "b"]) != namespace_name(["a"])
    assert re.fullmatch("[a-z0-9_]{1,64}", name)
    assert len(name) == NAMESPACE_NAME


def test_a_share_on_several_gpus_has_one_limit_for_each() -> None:
    """With protocol 3, a promise of several GPUs is granted without a key that accepts a risk."""
    nodes = a_node(40960, 20480)
    (resource,) = planned(nodes, sharing=memory(isolation="mps"), flags=PROTOCOL_3).resources
    first, second = ([unit.id for unit in units[:3]] for units in resource.units.by_gpu.values())
    grant = resource.allocate([*first, *second], Recipient(6, promised=True))
    assert grant.namespace == ContainerNamespace(namespace_name([*first, *second]), 3072, 7)
    described = resource_record(resource)
    assert described is not None
    assert not described.single_gpu
    with pytest.raises(PlacementError, match=r"3072 MiB on GPU 0 .*, 2048 MiB on GPU 1 .* found, the same on each GPU"):
        resource.allocate([*first, *second[:2]], Recipient(5, promised=True))
    assert resource.granted([*first, *second[:2]]) is None


@pytest.mark.parametrize(
    ("sharing", "limit"),
    [
        ({"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}, (10240, 25)),
        ({"mps": {"sizes": [{"slices": [{"size": "10gb"}], "compute": "unlimited"}]}}, (10240, None)),
        (memory(isolation="mps", compute="requested", unit="10GiB"), (10240, None)),
    ],
)
def test_every_way_has_namespaces(sharing: dict[str, object], limit: tuple[int, int | None]) -> None:
    """Also those whose limits are defaults of the MPS control daemon with protocol 2; protocol 3 has no defaults."""
    decided = planned(NODE, sharing=sharing, flags=PROTOCOL_3)
    grant = decided.resources[0].allocate([next(iter(decided.resources[0].units))])
    assert grant.namespace is not None
    assert (grant.namespace.memory_limit_mib, grant.namespace.active_thread_percentage) == limit
    assert decided.mps.active_thread_percentage is None


def test_no_path_of_a_container_is_mounted_twice() -> None:
    """A container with several mounts can be started whatever the isolation."""
    for case in CASES:
        for first, second in combinations(received(case, "volume-mounts").mounts, 2):
            assert isinstance(first, Mount)
            assert first.container_path != second.container_path

"""What containers receive, for every way of sharing and every isolation.

`python -m generators.isolation_table` writes the variables and mounts of each isolation into `docs/isolation.md`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from generators.pages import DOCUMENTS, with_table
from gpushare_plugin.core.grant import Mount

PAGE = DOCUMENTS / "isolation.md"


@dataclass(frozen=True, slots=True)
class Case:
    """A `sharing` section, a request on a node with one GPU of 40 GiB, and what the container gets beside the GPU."""

    sharing: str
    resource: str
    count: int
    environment: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    cgpu_disabled: bool = False


def memory(entry: str = "") -> str:
    """Return a `sharing` section with one memory entry."""
    extra = f", {entry}" if entry else ""
    return f"memory: {{resources: [{{name: aliyun.com/gpu-mem{extra}}}]}}"


def aliyun(units: int) -> dict[str, str]:
    """Return what containers with so many of 40 units get in variables, in units."""
    return {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": "40",
    }


def share(mib: int) -> dict[str, str]:
    """Return the variables of containers with a limit, in MiB."""
    return {"GPUSHARE_MEMORY_LIMIT_MIB": str(mib), "GPUSHARE_GPU_MEMORY_MIB": "40960"}


PIPE = {"CUDA_MPS_PIPE_DIRECTORY": "/mps/pipe"}
MPS = (Mount("/mps/pipe", "/run/nvidia/mps/pipe", read_only=True), Mount("/dev/shm", "/run/nvidia/mps/shm"))  # noqa: S108
HAMI = (
    Mount("/usr/local/vgpu", "/usr/local/vgpu", read_only=True),
    Mount("/etc/ld.so.preload", "/usr/local/vgpu/ld.so.preload", read_only=True),
)
CACHE = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/gpushare-ffaeb837c0c814e3.cache"}  # noqa: S108
HINTS = {
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.250000",
    "CUPY_GPU_MEMORY_LIMIT": "10737418240",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}
SEEN_LIMIT_HINTS = {name: value for name, value in HINTS.items() if not name.startswith("XLA")}
"""Of JAX, which sees a limit of HAMi-core or of the driver as the memory of the GPU, there is no fraction."""
TEN_GIB = aliyun(10) | share(10240)
PINNED = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10240M"}
HAMI_LIMIT = {"CUDA_DEVICE_MEMORY_LIMIT_0": "10240m"}


def driver(hard: int, soft: int = 0) -> dict[str, str]:
    """Return the driver limits that the hook of NVIDIA's container toolkit reads, in MiB."""
    return {"NVIDIA_GPU_MEMORY_REQUEST": str(soft), "NVIDIA_GPU_MEMORY_LIMIT": str(hard)}


def percent(number: int) -> dict[str, str]:
    """Return the limit of compute under MPS."""
    return {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(number)}


def sm_limit(number: int) -> dict[str, str]:
    """Return the limit of compute under HAMi-core."""
    return {"CUDA_DEVICE_SM_LIMIT": str(number)}


def mem(
    entry: str, environment: dict[str, str], mounts: tuple[Mount, ...] = (), *, cgpu_disabled: bool = False
) -> Case:
    """Return a case of ten units of memory."""
    return Case(memory(entry), "aliyun.com/gpu-mem", 10, TEN_GIB | environment, mounts, cgpu_disabled)


CASES = [
    Case("{}", "nvidia.com/gpu", 1),
    mem("", {}),
    mem("", {"CGPU_DISABLE": "true"}, cgpu_disabled=True),
    mem("frameworkHints: true", HINTS),
    mem("isolation: mps", PIPE | PINNED | percent(25), MPS),
    mem("isolation: mps, compute: unlimited", PIPE | PINNED, MPS),
    mem("isolation: mps, compute: 60", PIPE | PINNED | percent(60), MPS),
    mem("isolation: mps, compute: requested", PIPE | PINNED, MPS),
    Case(memory("isolation: mps, compute: requested"), "aliyun.com/gpu-core.percentage", 30, percent(30)),
    mem("isolation: mps, frameworkHints: true", PIPE | PINNED | percent(25) | HINTS, MPS),
    mem("isolation: hami-core", HAMI_LIMIT | sm_limit(25) | CACHE, HAMI),
    mem("isolation: hami-core, compute: unlimited", HAMI_LIMIT | CACHE, HAMI),
    mem("isolation: hami-core, compute: 60", HAMI_LIMIT | sm_limit(60) | CACHE, HAMI),
    mem("isolation: hami-core, compute: requested", HAMI_LIMIT | CACHE, HAMI),
    Case(memory("isolation: hami-core, compute: requested"), "aliyun.com/gpu-core.percentage", 30, sm_limit(30)),
    mem("isolation: hami-core, frameworkHints: true", HAMI_LIMIT | sm_limit(25) | CACHE | SEEN_LIMIT_HINTS, HAMI),
    mem("isolation: driver", driver(10240)),
    mem("isolation: driver, frameworkHints: true", driver(10240) | SEEN_LIMIT_HINTS),
    mem("isolation: driver, burst: 1.5", driver(15360, 10240)),
    mem("isolation: driver+mps", PIPE | PINNED | percent(25) | driver(10240), MPS),
    mem(
        "isolation: driver+mps, frameworkHints: true",
        PIPE | PINNED | percent(25) | driver(10240) | SEEN_LIMIT_HINTS,
        MPS,
    ),
    Case(memory("isolation: driver+mps, compute: requested"), "aliyun.com/gpu-core.percentage", 30, percent(30)),
    mem(
        "isolation: driver+mps, burst: 20GiB",
        PIPE | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M"} | percent(25) | driver(20480, 10240),
        MPS,
    ),
    Case("timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}", "nvidia.com/gpu", 1),
    Case(
        "timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4, isolation: driver}]}",
        "nvidia.com/gpu",
        1,
        share(10240) | driver(10240),
    ),
    Case(
        "timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4, isolation: hami-core}]}",
        "nvidia.com/gpu",
        1,
        share(10240) | HAMI_LIMIT | {"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/gpushare-80011f58574cdafa.cache"},  # noqa: S108
        HAMI,
    ),
    Case(
        "mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}",
        "nvidia.com/gpu",
        1,
        share(10240) | PIPE | percent(25),
        MPS,
    ),
    Case(
        "mps: {resources: [{name: nvidia.com/gpu, replicas: 4, isolation: driver}]}",
        "nvidia.com/gpu",
        1,
        share(10240) | PIPE | percent(25) | driver(10240),
        MPS,
    ),
    Case(
        "mps: {resources: [{name: nvidia.com/gpu, replicas: 4, isolation: driver+mps}]}",
        "nvidia.com/gpu",
        1,
        share(10240) | PIPE | percent(25) | driver(10240),
        MPS,
    ),
    Case(
        "mps: {sizes: [{slices: [{size: 10gb, count: 2}, {size: 20gb}]}]}",
        "nvidia.com/gpu-10gb",
        1,
        share(10240) | PIPE | PINNED | percent(25),
        MPS,
    ),
    Case(
        "mps: {sizes: [{slices: [{size: 10gb, count: 2}, {size: 20gb}], compute: equal}]}",
        "nvidia.com/gpu-10gb",
        1,
        share(10240) | PIPE | PINNED | percent(33),
        MPS,
    ),
    Case(
        "mps: {sizes: [{slices: [{size: 10gb, count: 2}, {size: 20gb}], compute: unlimited}]}",
        "nvidia.com/gpu-10gb",
        1,
        share(10240) | PIPE | PINNED,
        MPS,
    ),
    Case(
        "mps: {sizes: [{slices: [{size: 10gb, count: 2}, {size: 20gb}], isolation: driver}]}",
        "nvidia.com/gpu-10gb",
        1,
        share(10240) | PIPE | PINNED | percent(25) | driver(10240),
        MPS,
    ),
    Case(
        "mps: {sizes: [{slices: [{size: 10gb, count: 2}, {size: 20gb}], isolation: driver+mps}]}",
        "nvidia.com/gpu-10gb",
        1,
        share(10240) | PIPE | PINNED | percent(25) | driver(10240),
        MPS,
    ),
    Case(
        "mps: {sizes: [{slices: [{size: 10gb, count: 2}, {size: 20gb}]}]}",
        "nvidia.com/gpu-20gb",
        1,
        share(20480) | PIPE | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M"} | percent(50),
        MPS,
    ),
]


SHOWN = (
    "isolation: mps",
    "isolation: hami-core",
    "isolation: driver",
    "isolation: driver, burst: 1.5",
)
"""The entries of `sharing.memory` on the page: each isolation by itself, and a burst."""


def page() -> str:
    """Return the page with the table of today."""
    head = ["| entry of `sharing.memory` | variables | mounts |", "|---|---|---|"]
    rows = [_row(entry, case) for entry in SHOWN for case in CASES if case.sharing == memory(entry)]
    return with_table(PAGE, [*head, *rows])


def _row(entry: str, case: Case) -> str:
    added = case.environment.items() - TEN_GIB.items()
    variables = (f"`{name}={value}`" for name, value in case.environment.items() if (name, value) in added)
    mounts = (f"{each.host_path} → {each.container_path}" + (", read-only" * each.read_only) for each in case.mounts)
    return f"| `{entry}` | {_lines(variables)} | {_lines(mounts)} |"


def _lines(parts: Iterable[str]) -> str:
    return "<br>".join(parts) or "nothing"


if __name__ == "__main__":
    PAGE.write_text(page())

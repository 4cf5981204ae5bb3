"""The demonstration: simulated GPUs, the real daemon, an embedded kubelet, and pods that request a share."""

import asyncio
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gpushare_plugin.adapters.host.simulated import SimulatedSource
from gpushare_plugin.adapters.kubelet.allocations.pod_resources import list_pods
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.inspect.report import NodeReport, report
from gpushare_plugin.inspect.tables import gpu_table, plain_table
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.model.snapshot import Snapshot
from gpushare_plugin.programs.node import daemon as app
from gpushare_plugin.programs.node.configuration import decide
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.testing.kubelet import AdmittedPod, Container, EmbeddedKubelet, Pod

GPUS = """\
gpus:
- name: NVIDIA A100-SXM4-40GB
  memory: 40GiB
  computeCapability: "8.0"
  count: 2
- name: NVIDIA A10
  memory: 23028MiB
  computeCapability: "8.6"
- name: NVIDIA L40S
  memory: 46068MiB
  computeCapability: "8.9"
"""

CONFIG = """\
version: v1
sharing:
  memory:
    resources:
    - name: aliyun.com/gpu-mem   # two GPUs by memory, in GiB
      unit: GiB
      devices: [0, 1]
  timeSlicing:
    resources:
    - name: nvidia.com/gpu       # one GPU by turns
      rename: nvidia.com/gpu.shared
      devices: [2]
      replicas: 4
"""  # the fourth GPU is named nowhere, so it is advertised whole

PODS = (
    Pod("inference", [Container("model", {"aliyun.com/gpu-mem": 5})]),
    Pod("notebook", [Container("jupyter", {"nvidia.com/gpu.shared": 1})]),
    Pod("training", [Container("trainer", {"nvidia.com/gpu": 1})]),
)


async def show(console: Console | None = None) -> None:
    """Run the demonstration and print it; ends by itself."""
    console = console or Console()
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        files = Path(folder)
        (files / "gpus.yaml").write_text(GPUS)
        (files / "config.yaml").write_text(CONFIG)
        configs, source = Configs(file=files / "config.yaml"), SimulatedSource(files / "gpus.yaml")
        inventory = await app.look(source)
        plan = decide(configs.load(), inventory)
        async with EmbeddedKubelet(files) as kubelet:
            settings = app.Daemon(configs, lambda _: source, kubelet.plugin_directory)
            daemon = asyncio.create_task(app.serve(settings), name="gpushare")
            try:
                pods = await _admit_when_ready(kubelet, daemon, plan)
                holdings = (await list_pods(kubelet.pod_resources_socket)).holdings
            finally:
                daemon.cancel()
                await asyncio.wait([daemon])
        _print(console, inventory, plan, pods, report(Snapshot(inventory, plan.resources, holdings=holdings)))


async def _admit_when_ready(kubelet: EmbeddedKubelet, daemon: asyncio.Task[None], plan: Plan) -> list[AdmittedPod]:
    """Wait until the kubelet counts every unit, then let the pods in; raises what a daemon raises that ends first."""
    expected = {resource.name: len(resource.units) for resource in plan.resources}
    ready = asyncio.create_task(kubelet.wait_for(lambda node: node.allocatable() == expected), name="ready")
    await asyncio.wait([ready, daemon], return_when=asyncio.FIRST_COMPLETED)
    if daemon.done():
        ready.cancel()
        await daemon
    await ready
    return [await kubelet.admit(pod) for pod in PODS]


def _print(console: Console, inventory: Inventory, plan: Plan, pods: Sequence[AdmittedPod], node: NodeReport) -> None:
    console.print(f"[bold]A node with {len(inventory.cards)} simulated GPUs registered with the kubelet[/bold]")
    for resource in plan.resources:
        console.print(f"  {resource.name}: {len(resource.units)}")
    console.print("\n[bold]What each pod gets[/bold]")
    console.print(_pod_table(inventory, pods))
    console.print("\n[bold]How full each GPU is[/bold]")
    console.print(gpu_table(node, uuids=False))
    for pod in pods:
        for container in pod.containers.values():
            console.print(f"\n[bold]Environment of {pod.pod.name}/{container.name}[/bold]")
            for name, value in sorted(container.environment.items()):
                console.print(f"  {name}={value}", highlight=False)


def _pod_table(inventory: Inventory, pods: Iterable[AdmittedPod]) -> Table:
    gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
    table = plain_table("POD", "REQUESTS", "GPU", "PRODUCT", "MEMORY LIMIT")
    for pod in pods:
        for container in pod.containers.values():
            gpu = gpus[container.environment["NVIDIA_VISIBLE_DEVICES"]]
            limit = container.environment.get("GPUSHARE_MEMORY_LIMIT_MIB")
            requests = pod.pod.container(container.name).limits.items()
            table.add_row(
                pod.pod.name,
                ", ".join(f"{name}: {count}" for name, count in requests),
                gpu.label,
                gpu.product,
                f"{limit} MiB" if limit else "none",
            )
    return table

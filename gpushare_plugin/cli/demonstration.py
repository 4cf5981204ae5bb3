"""The demonstration: simulated GPUs, the real daemon, an embedded kubelet, and pods that request a share."""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.gpus.simulated import SimulatedSource
from gpushare_plugin.kubelet.allocations.pod_resources import list_pods
from gpushare_plugin.node import daemon as app
from gpushare_plugin.node.configuration import decide
from gpushare_plugin.observe.node.report import NodeReport, report
from gpushare_plugin.observe.node.tables import narrower, print_fitted, usage_tables
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
"""The file that describes the simulated GPUs."""

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
"""  # the fourth GPU is named nowhere and is therefore advertised whole
"""The config of the node."""

PODS = (
    Pod("inference", [Container("model", {"aliyun.com/gpu-mem": 5})]),
    Pod("chat", [Container("model", {"aliyun.com/gpu-mem": 16})]),
    Pod("search", [Container("model", {"aliyun.com/gpu-mem": 12})]),
    Pod("video", [Container("model", {"aliyun.com/gpu-mem": 20})]),
    Pod("notebook-a", [Container("jupyter", {"nvidia.com/gpu.shared": 1})]),
    Pod("notebook-b", [Container("jupyter", {"nvidia.com/gpu.shared": 1})]),
    Pod("training", [Container("trainer", {"nvidia.com/gpu": 1})]),
)
"""The sample pods, admitted in order."""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The result of the demonstration."""

    inventory: Inventory
    """The simulated GPUs."""
    resources: tuple[Resource, ...]
    """The resources registered with the embedded kubelet."""
    pods: tuple[AdmittedPod, ...]
    """The admitted pods with everything that their containers got."""
    node: NodeReport
    """The report on the node after all pods were admitted."""


async def run() -> Demonstration:
    """Run the daemon on simulated GPUs with an embedded kubelet until the pods are admitted, and return the result."""
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
        node = report(Snapshot(inventory, plan.resources, holdings=holdings))
        return Demonstration(inventory, tuple(plan.resources), tuple(pods), node)


async def _admit_when_ready(kubelet: EmbeddedKubelet, daemon: asyncio.Task[None], plan: Plan) -> list[AdmittedPod]:
    """Wait until the kubelet counts every unit, then admit the pods; raise the error of a daemon that ends first."""
    expected = {resource.name: len(resource.units) for resource in plan.resources}
    ready = asyncio.create_task(kubelet.wait_for(lambda node: node.allocatable() == expected), name="ready")
    await asyncio.wait([ready, daemon], return_when=asyncio.FIRST_COMPLETED)
    if daemon.done():
        ready.cancel()
        await daemon
    await ready
    return [await kubelet.admit(pod) for pod in PODS]


def show(demonstration: Demonstration, console: Console | None = None) -> None:
    """Print the units and limits of the pods, and the held units of the GPUs."""
    console = console or Console()
    first, *_ = demonstration.pods
    console.print(
        f"[bold]A node with {len(demonstration.inventory.cards)} simulated GPUs registered with the kubelet[/bold]",
        soft_wrap=True,
    )
    for resource in demonstration.resources:
        console.print(f"  {resource.name}: {len(resource.units)}", soft_wrap=True)
    console.print("\n[bold]What each pod gets[/bold]")
    headers = ("POD", "REQUESTS", "GPU", "PRODUCT", "MEMORY LIMIT")
    print_fitted(console, narrower(headers, _pods(demonstration), ("PRODUCT",)))
    console.print("\n[bold]How full each GPU is[/bold]")
    print_fitted(console, usage_tables(demonstration.node))
    for name, container in first.containers.items():
        console.print(f"\n[bold]Environment of {first.pod.name}/{name}[/bold]")
        for variable, value in sorted(container.environment.items()):
            console.print(f"  {variable}={value}", highlight=False, soft_wrap=True)


def _pods(demonstration: Demonstration) -> list[list[str]]:
    """Return a row for every container."""
    gpus = {gpu.uuid: gpu for gpu in demonstration.inventory.gpus}
    rows = []
    for pod in demonstration.pods:
        for name, container in pod.containers.items():
            gpu = gpus[container.environment["NVIDIA_VISIBLE_DEVICES"]]
            limit = container.environment.get("GPUSHARE_MEMORY_LIMIT_MIB")
            requests = ", ".join(f"{resource}: {count}" for resource, count in pod.pod.container(name).limits.items())
            rows.append([pod.pod.name, requests, gpu.label, gpu.product, f"{limit} MiB" if limit else "none"])
    return rows

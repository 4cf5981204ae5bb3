"""The options of `gpushare simulate` that say which nodes and pods are simulated, and what is changed of both."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from gpushare_plugin.cli.options import (
    A_PATH,
    Command,
    context_option,
    is_written,
    perhaps_kubeconfig_option,
    person_kubeconfig,
)
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.simulator.scenario import PodsFor, Scenario, scenario
from gpushare_plugin.simulator.spelled import A_SHAPE, GpuRequest, WrittenNodes, change, written_nodes, written_pods
from gpushare_plugin.simulator.trace import read_nodes, read_pods
from gpushare_plugin.simulator.what_ifs import FoundNode, WhatIfs

if TYPE_CHECKING:
    from gpushare_plugin.simulator.live_cluster import LiveCluster

_CLUSTER = "the live cluster"

Spelled = TypeVar("Spelled")


def _each(read: Callable[[str], Spelled]) -> Callable[..., tuple[Spelled, ...]]:
    """Return a callback that reads each text of an option that is given several times."""

    def called(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> tuple[Spelled, ...]:
        try:
            return tuple(map(read, texts))
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return called


def _shaped(text: str) -> WrittenNodes:
    """Return nodes with their shape; raises ValueError for nodes without a shape."""
    if (nodes := written_nodes(text)).shape is None:
        raise ValueError(f"found {text!r}, expected {A_SHAPE}, such as 20xA100,gpus=8,cpu=96,memory=768Gi")
    return nodes


def scenario_options(command: Command) -> Command:
    """Add the options to a command; `chosen_scenario` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--nodes", metavar="FILE", type=A_PATH, help="Nodes as CSV: cpu_milli, memory_mib, gpu, model."),
    click.option(
        "--pods",
        metavar="FILE",
        type=A_PATH,
        help="Pods as CSV: cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU), gpu_spec (models separated by "
        "vertical bars; empty for any).",
    ),
    click.option(
        "--cluster",
        is_flag=True,
        help="Nodes and pods of the cluster, unless other options give them.",
    ),
    click.option(
        "--generate-nodes",
        metavar="NODES",
        multiple=True,
        callback=_each(_shaped),
        help="Nodes such as 20xA100,gpus=8,cpu=96,memory=768Gi.",
    ),
    click.option(
        "--generate-pods",
        metavar="PODS",
        multiple=True,
        callback=_each(written_pods),
        help="Pods such as 60x81%,cpu=4,memory=16Gi (sixty, each 81 % of a GPU) or 10x4,models=A100 (ten, each four "
        "GPUs).",
    ),
    click.option(
        "--add-nodes",
        metavar="NODES",
        multiple=True,
        callback=_each(written_nodes),
        help="More nodes: 10xA100 for ten like the commonest nodes with this model, or with gpus=, cpu= and memory=.",
    ),
    click.option(
        "--remove-nodes",
        metavar="NODES",
        multiple=True,
        help="Fewer nodes: 3xT4 for the first three with this model, or the name of a node of the cluster.",
    ),
    click.option(
        "--change-pods",
        metavar="FROM=TO",
        multiple=True,
        callback=_each(change),
        help="Other requests: 81%=70% for a part of a GPU, 2=1 for a number of GPUs.",
    ),
    perhaps_kubeconfig_option,
    context_option,
)


class _ChosenSources(NamedTuple):
    """The options that say where nodes and pods are from, and what is changed of both."""

    nodes: Path | None
    """The file of nodes."""
    pods: Path | None
    """The file of pods."""
    cluster: bool
    """Whether nodes and pods are those of the cluster, where no other option gives them."""
    generate_nodes: Sequence[WrittenNodes]
    """Nodes with their shapes."""
    generate_pods: Sequence[Sequence[PodKind]]
    """Pods, kind by kind."""
    add_nodes: Sequence[WrittenNodes]
    """The nodes that are added."""
    remove_nodes: Sequence[str]
    """The nodes that are removed: names, or numbers with models."""
    change_pods: Sequence[tuple[GpuRequest, GpuRequest]]
    """What pods ask for, and what they are to ask for instead."""
    kubeconfig: Path | None
    """The kubeconfig of the cluster; None for the usual one."""
    context: str | None
    """The context of the kubeconfig; None for the current one."""


def chosen_scenario(options: dict[str, Any]) -> Scenario:
    """Take the options of `scenario_options` out of all options, and return what is simulated.

    Raises click.UsageError unless nodes and pods are from one source each, and GpushareError for what cannot be read.
    """
    given = _ChosenSources(**{field: options.pop(field) for field in _ChosenSources._fields})
    nodes_from = _source("nodes", given.nodes, given.generate_nodes, cluster=given.cluster)
    pods_from = _source("pods", given.pods, given.generate_pods, cluster=given.cluster)
    live = _live(given) if _CLUSTER in {nodes_from, pods_from} else None
    if given.cluster and live is None:
        raise click.UsageError("found --cluster beside options that give nodes and pods; leave one of them out")
    if live is None and (idle := [name for name in ("kubeconfig", "context") if is_written(name)]):
        raise click.UsageError(f"found --{idle[0]} without --cluster, expected both or none")
    return scenario(
        _nodes(given, live),
        _pods(given, live),
        f"Nodes and pods from {nodes_from}"
        if nodes_from == pods_from
        else f"Nodes from {nodes_from}, pods from {pods_from}",
        WhatIfs(given.add_nodes, given.remove_nodes, given.change_pods),
    )


def _source(what: str, file: Path | None, generated: Sequence[object], *, cluster: bool) -> str:
    """Return where nodes or pods are from, in words; raises click.UsageError for none or several sources."""
    if file is not None and generated:
        raise click.UsageError(f"found --{what} and --generate-{what}, expected one of them")
    if file is not None:
        return str(file)
    if generated:
        return "the command line"
    if not cluster:
        raise click.UsageError(f"found no {what}; expected --{what} FILE, --generate-{what} or --cluster")
    return _CLUSTER


def _nodes(given: _ChosenSources, live: "LiveCluster | None") -> Sequence[FoundNode]:
    if given.nodes is not None:
        return [FoundNode("", kind) for kind in read_nodes(given.nodes)]
    if given.generate_nodes or live is None:
        counted = [(each.shape, each.counted.number) for each in given.generate_nodes]
        return [FoundNode("", shape) for shape, number in counted if shape is not None for _ in range(number)]
    return live.found_nodes()


def _pods(given: _ChosenSources, live: "LiveCluster | None") -> PodsFor:
    if given.pods is not None:
        found = read_pods(given.pods)
        return lambda _: found
    if given.generate_pods or live is None:
        return lambda _: [pod for pods in given.generate_pods for pod in pods]
    return live.found_pods


def _live(given: _ChosenSources) -> "LiveCluster":
    """Read the cluster."""
    # A simulation without a cluster need not wait until the client is imported.
    from gpushare_plugin.base.log.form import configure_log  # noqa: PLC0415
    from gpushare_plugin.kube.client import Client  # noqa: PLC0415
    from gpushare_plugin.kube.whole_cluster.reading import PATIENT  # noqa: PLC0415
    from gpushare_plugin.simulator.live_cluster import read_live  # noqa: PLC0415

    configure_log("console", "warning")
    client = Client(person_kubeconfig(given.kubeconfig), PATIENT, context=given.context)
    return asyncio.run(read_live(client))

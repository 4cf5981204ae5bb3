"""`gpushare explain`: why a pod gets no GPU, or why it has the one it has."""

import asyncio
import gc
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import click

from gpushare_plugin.adapters.cluster.accounts import account_pod
from gpushare_plugin.adapters.cluster.client import Client, ClusterError
from gpushare_plugin.adapters.cluster.objects import ExplainedPod, Pod
from gpushare_plugin.adapters.cluster.overview import PATIENT, Overview, read, read_pod
from gpushare_plugin.cli.commands.cluster.inspect import node_facts
from gpushare_plugin.cli.logs import configure_log
from gpushare_plugin.cli.options import context_option, person_kubeconfig_option
from gpushare_plugin.cli.output import output_style
from gpushare_plugin.inspect.cluster.explained import lines
from gpushare_plugin.inspect.cluster.explanation import Told, explain
from gpushare_plugin.inspect.cluster.report import encode


@click.command("explain", short_help="Explain why a pod gets no GPU, or why it has the one it has.")
@click.argument("pod")
@click.option("-n", "--namespace", metavar="NAMESPACE", help="Namespace of the pod. Default: that of the context.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format; json has every node."
)
@person_kubeconfig_option
@context_option
def command(pod: str, namespace: str | None, output: str, kubeconfig: Path | None, context: str | None) -> None:
    """Explain a pod: for one that waits, why it fits on no GPU, node by node, and what would make it fit.

    For a pod that has a node, on which GPUs it is, who says so, what was promised, and what the node allocated.

    Needs the right to list nodes and pods in the whole cluster.
    """
    configure_log("console", "warning")
    # Almost nothing of a cluster that is read once is garbage, and to look for it takes as long as to read it.
    gc.disable()
    found, said, overview = asyncio.run(_read(Client(kubeconfig, PATIENT, context=context), namespace, pod))
    told = Told(found.metadata.annotations, found.spec.scheduler_name, tuple(_waits(found, said)))
    facts = {each.name: each for each in node_facts(overview)}
    explanation = explain(overview.account, facts, account_pod(found), told)
    click.echo(encode(explanation, indent=2) if output == "json" else "\n".join(lines(explanation, output_style())))


async def _read(client: Client, namespace: str | None, name: str) -> tuple[Pod, ExplainedPod, Overview]:
    async with client:
        found, said = await read_pod(client, namespace or await client.namespace(), name)
        try:
            return found, said, await read(client, [found.spec.node_name] if found.spec.node_name else [])
        except ClusterError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return found, said, Overview()  # a pod can outlive its node for some minutes


def _waits(pod: Pod, said: ExplainedPod) -> Iterator[str]:
    """Yield what Kubernetes itself says that the pod waits for, or why it failed."""
    for gate in said.spec.scheduling_gates:
        yield f"Scheduling gate {gate.name}: no scheduler looks at the pod until it is removed"
    for each in said.status.conditions:
        if each.type == "PodScheduled" and each.status != "True":
            yield f"The scheduler says: {each.message or each.reason or 'nothing'}"
    if pod.status.nominated_node_name:
        yield f"Nominated for node {pod.status.nominated_node_name}: pods there are being evicted for it"
    if pod.status.reason or said.status.message:
        yield f"The kubelet says: {': '.join(filter(None, (pod.status.reason, said.status.message)))}"

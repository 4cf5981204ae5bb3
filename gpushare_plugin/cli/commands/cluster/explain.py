"""`gpushare explain`: why a pod gets no GPU, or why it has the one it has."""

import asyncio
import gc
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

import click

from gpushare_plugin.base import structs
from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.cli import completing
from gpushare_plugin.cli.options import (
    context_option,
    extender_namespace_option,
    partitioner_namespace_option,
    person_kubeconfig_option,
)
from gpushare_plugin.cli.output import output_style, show, show_json, warn
from gpushare_plugin.kube.client import Client, ClusterError
from gpushare_plugin.kube.names import WHAT_ANYONE_CAN_DO
from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import judged_pod, pod_of
from gpushare_plugin.kube.whole_cluster.extender_lease import extender_standing
from gpushare_plugin.kube.whole_cluster.movable import MovableOverview
from gpushare_plugin.kube.whole_cluster.overview import Overview, read, read_pod
from gpushare_plugin.kube.whole_cluster.packed import PackedOverview
from gpushare_plugin.kube.whole_cluster.pod_claims import read_claims
from gpushare_plugin.kube.whole_cluster.reading import PATIENT
from gpushare_plugin.kube.whole_cluster.waiting import reasons_of
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.observe.cluster import stranded_words
from gpushare_plugin.observe.cluster.explained import lines
from gpushare_plugin.observe.cluster.explanation import Explanation, Told, explain
from gpushare_plugin.observe.cluster.stranded import StrandedReport, stranded_cards, stranded_room
from gpushare_plugin.observe.cluster.verdict import with_verdict
from gpushare_plugin.observe.parts import Part, encode
from gpushare_plugin.partitioner.outlook import JudgedOverview, partitioners


def _given(context: click.Context, _argument: click.Parameter, pod: str | None) -> str | None:
    """Return the pod; raise click.UsageError if the command line has neither a pod nor `--stranded`."""
    if pod is None and not context.params["stranded"]:
        raise click.UsageError("Missing argument 'POD'.", context)
    return pod


@click.command("explain", short_help="Explain why a pod gets no GPU, or why it has the one it has.")
@click.argument("pod", required=False, callback=_given, shell_complete=completing.pods)
@click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    shell_complete=completing.namespaces,
    help="Namespace of the pod. Default: that of the context.",
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format; json has every node."
)
@click.option(
    "--stranded",
    is_flag=True,
    is_eager=True,
    help="List which few pods, if moved, would free cards or, with POD, room for a waiting pod. Nothing is changed.",
)
@extender_namespace_option
@partitioner_namespace_option
@person_kubeconfig_option
@context_option
def command(
    *,
    pod: str | None,
    output: str,
    stranded: bool,
    kubeconfig: Path | None,
    context: str | None,
    **namespaces: str | None,
) -> None:
    """Explain why a pod gets no GPU, node by node, and what to change; or which GPUs a pod has, and who chose them.

    POD is NAME or NAMESPACE/NAME, and may be left out with --stranded.

    Without the right to get Leases, the output says what is assumed.
    """
    configure_log("console", "warning")
    # Almost nothing of a cluster that is read once is garbage, and to look for it takes as long as to read it.
    gc.disable()
    client = Client(kubeconfig, PATIENT, context=context)
    if pod is not None:
        pod, namespaces["namespace"] = _named(pod, namespaces["namespace"])
    if pod is None or stranded:
        _show(asyncio.run(_stranded(client, pod, namespaces["namespace"])), stranded_words.lines, output)
    else:
        _show(_explained(client, pod, namespaces), lines, output)


Shown = TypeVar("Shown", bound=Part)


def _show(report: Shown, words: Callable[[Shown], Iterable[str]], output: str) -> None:
    """Print a report as JSON, or in words."""
    if output == "json":
        show_json(encode(report, indent=2))
    else:
        show(words(report), output_style())


async def _stranded(client: Client, name: str | None, namespace: str | None) -> StrandedReport:
    """Return which few pods, if moved, would free cards, or room for a pod."""
    async with client:
        overview = await read(client, empty=MovableOverview)
        if name is None:
            return stranded_cards(overview.account, overview.controllers)
        found = judged_pod(await read_pod(client, namespace or await client.namespace(), name))
    return stranded_room(overview.account, overview.controllers, found)


def _explained(client: Client, pod: str, namespaces: Mapping[str, str | None]) -> Explanation:
    """Return why a pod gets no GPU, or why the pod has the one it has."""
    (found, extender, overview, slices), (claims, of_claims) = asyncio.run(_read_all(client, pod, namespaces))
    told = Told(
        found.metadata.annotations, found.spec.scheduler_name, tuple(reasons_of(found)), extender, slices, claims
    )
    if isinstance(overview, PackedOverview):
        told = structs.replace(told, losses=overview.losses(found))
    return with_verdict(explain(overview.account, pod_of(found), told), of_claims)


def _named(pod: str, namespace: str | None) -> tuple[str, str | None]:
    """Return the name and the namespace of a pod that is given by its name, or as NAMESPACE/NAME."""
    before, slash, name = pod.rpartition("/")
    if not slash:
        return pod, namespace
    if not before or not name or "/" in before or namespace not in {None, before}:
        found = pod if namespace is None else f"{pod} with --namespace {namespace}"
        raise click.UsageError(f"{found} names no pod; give NAME, NAMESPACE/NAME, or NAME with --namespace")
    return name, before


_Read = tuple[ApiPod, ExtenderStanding, Overview, tuple[str, ...]]
_OfClaims = tuple[tuple[str, ...], str]
"""Sentences on the claims of a pod, and the verdict on the claims."""


async def _read_all(client: Client, name: str, namespaces: Mapping[str, str | None]) -> tuple[_Read, _OfClaims]:
    """Return what is known of a pod and of the cluster, and of the claims of the pod."""
    async with client:
        namespace = namespaces["namespace"] or await client.namespace()
        found = await _read(client, name, {**namespaces, "namespace": namespace})
        claims = await read_claims(client, namespace, name)
    if claims is None or found[0].status.phase in {"Succeeded", "Failed"}:
        return found, ((), "")
    return found, (tuple(claims.sentences()), claims.verdict)


async def _read(client: Client, name: str, namespaces: Mapping[str, str | None]) -> _Read:
    found = await read_pod(client, namespaces["namespace"] or "", name)
    extender = await extender_standing(client, namespaces["extender_namespace"] or "", datetime.now(UTC))
    if extender.open_to_anyone:
        warn(f"gpushare: {WHAT_ANYONE_CAN_DO}; use client certificates (docs/scheduling.md, HTTPS)")
    pod = pod_of(found)
    if pod.node is None and not pod.ended and pod.asks_for_slices:
        judged = await read(client, empty=lambda: JudgedOverview(extender.policy))
        now = datetime.now(UTC)
        leading = await partitioners(client, namespaces["partitioner_namespace"] or "", now)
        return found, extender, judged, judged.slices_for(pod, leading, now)
    try:
        names = [found.spec.node_name] if found.spec.node_name else []
        overview = await read(client, names, empty=lambda: _empty(extender))
    except ClusterError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        overview = Overview(extender.policy)  # a pod can outlive its node for some minutes
    return found, extender, overview, ()


def _empty(extender: ExtenderStanding) -> Overview:
    """Return the overview of a cluster with such an extender, without Nodes and Pods."""
    return PackedOverview(extender) if extender.policy == "packing" else Overview(extender.policy)

"""Text of tenants and nodes at a terminal: whatever the text is, every output shows the text as text."""

import asyncio
import io
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path

import click
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import visible
from gpushare_plugin.claims.asked import AskedDevice, PodClaim
from gpushare_plugin.claims.outlook import claims_verdict, outlook
from gpushare_plugin.cli import completing
from gpushare_plugin.cli.output import show, show_json
from gpushare_plugin.core.effect import not_in_effect
from gpushare_plugin.ledger.annotations import HAMI_MODELS, LIMITS, PLACEMENT, PROMISE, write_limits
from gpushare_plugin.observe.cluster.blocks import blocks
from gpushare_plugin.observe.cluster.claim_table import claims
from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.cluster.explained import lines
from gpushare_plugin.observe.cluster.explanation import Told, explain
from gpushare_plugin.observe.cluster.filters import Filters, nothing_found
from gpushare_plugin.observe.cluster.report import ClusterReport
from gpushare_plugin.observe.cluster.slices import slices
from gpushare_plugin.observe.cluster.tables import details, summary, wide
from gpushare_plugin.observe.cluster.verdict import with_verdict
from gpushare_plugin.observe.parts import encode
from gpushare_plugin.testing.cluster import ApiServer
from tests.attacks.unseen import HOSTILE
from tests.unit.ledger.objects import memory, pod, uuid
from tests.unit.observe.cluster.clusters import Cluster, gpu, recorded

NOW = datetime(2026, 11, 27, tzinfo=UTC)
texts = st.one_of(
    st.just(HOSTILE),
    st.text(
        st.one_of(st.characters(categories=["Cc", "Cf", "Zl", "Zp", "Cs", "L"]), st.sampled_from("\x1b\u202e\u115f")),
        min_size=1,
    ),
).filter(lambda text: text.encode(errors="ignore").decode() == text)
"""Texts with controls, changes of direction, separators and characters without a width."""


def hostile(text: str) -> Cluster:
    """Return a cluster whose node, GPUs, pods and annotations are named and written by an attacker."""
    cluster = Cluster()
    sick = gpu("n", 1, healthy=False, reason=text, product=text)
    unoffered = gpu("n", 2, 0, resource=None, reason=text, product=text)
    cluster.node("n", recorded(gpu("n", 0, product=text), sick, unoffered, notices=(text,)), address=text)
    limits = write_limits({"main": {uuid(0, "n"): not_in_effect(text)}})
    cluster.pod("p", 4, "n", on=0, namespace=text, written=((LIMITS, limits),))
    cluster.pod(f"{text}-2", 1, "n", namespace=text)
    return cluster


def printed(report: ClusterReport, cluster: Cluster, text: str) -> str:
    """Return all that `inspect` and `explain` print of a cluster, to a pipe and to a terminal."""
    waiting = pod(memory(90, annotations={HAMI_MODELS: text, PLACEMENT: text}), uid="w", namespace=text)
    told = Told(
        {PROMISE: text, LIMITS: text},
        text,
        (f"The scheduler says: {text}",),
        claims=tuple(outlook([PodClaim(text, unknown=text), PodClaim(text, (AskedDevice(text, text),))], [])),
        slices=(text,),
    )
    placed = replace(waiting, node="n")
    stream = io.StringIO()
    with redirect_stdout(stream):
        for style in (Style(), Style(40, bold=True, bars=True, utf8=False)):
            for shown in (summary, wide, details, claims):
                show(shown(report, style), style)
            show(slices(report, style, NOW), style)
            show(blocks(report, style, 1), style)
            show([nothing_found(report, Filters(namespaces=(text,)))], style)
            for each in (waiting, placed):
                found = explain(cluster.account, each, told)
                show(lines(with_verdict(found, claims_verdict([PodClaim(text, unknown=text)], []))), style)
                show_json(encode(found, 2))
        show_json(encode(report, 2))
    return stream.getvalue()


@given(texts)
def test_every_output_shows_text_as_text(text: str) -> None:
    """Nothing of what `inspect` and `explain` print is unseen, but the bold of headings."""
    cluster = hostile(text)
    output = printed(cluster.report, cluster, text).replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert [line for line in output.split("\n") if visible(line) != line] == []


async def test_completion_gives_no_name_that_a_terminal_would_obey(tmp_path: Path) -> None:
    """A server that is no Kubernetes, or a store that was written past it, gives names that no object can have."""
    async with ApiServer() as server:
        for name in ("good", HOSTILE):
            server.store.create("/api/v1/nodes", {"metadata": {"name": name}})
        kubeconfig = server.kubeconfig(tmp_path / "config")
        context = click.Context(click.Command("inspect"))
        context.params = {"kubeconfig": kubeconfig}
        found = await asyncio.to_thread(completing.nodes, context, click.Option(["--node"]), "")
    assert found == ["good"]

"""Advice on which pods to move, in words."""

from collections import Counter
from collections.abc import Iterator

from gpushare_plugin.base.text import some_of
from gpushare_plugin.ledger.stranded import MOST_CARDS
from gpushare_plugin.observe.cluster.columns import Headed
from gpushare_plugin.observe.cluster.stranded import Freed, MovedPod, StrandedReport

MOST_SHOWN = 20
"""The most cards or places shown."""
_MOST_NAMES = 5


def lines(report: StrandedReport) -> Iterator[str]:
    """Yield the advice line by line."""
    if report.needless is not None:
        yield f"Pod {report.namespace}/{report.pod} needs no other room: {report.needless}"
        return
    yield Headed(_head(report))
    for each in report.freed[:MOST_SHOWN]:
        yield ""
        yield from _one(each)
    if len(report.freed) > MOST_SHOWN:
        yield f"… and {len(report.freed) - MOST_SHOWN:,} more; -o json shows all"
    yield ""
    if any(each.moves for each in report.freed):
        yield from _how(report)
    yield from (f"{note}." for note in report.notes)


def _head(report: StrandedReport) -> str:
    count = len(report.freed)
    if report.pod is not None:
        who = f"pod {report.namespace}/{report.pod}"
        return (
            f"Ways to make room for {who}: {count:,}; each is enough" if count else f"Few moves make no room for {who}"
        )
    if not count:
        return "No card would be free by few moves"
    looked = (
        f" (of {report.candidates:,} with few pods, {MOST_CARDS} looked at)" if report.candidates > MOST_CARDS else ""
    )
    return f"Cards that would be free: {count:,}{looked}; each counts on the moves before it"


def _one(freed: Freed) -> Iterator[str]:
    card = f"Node {freed.node}" if freed.index is None else f"GPU{freed.index} of node {freed.node}"
    moves = f"move {len(freed.moves)} {'pod' if len(freed.moves) == 1 else 'pods'}" if freed.moves else "no pod has it"
    yield Headed(card, f": {moves}")
    yield from (f"  {_move(each)}" for each in freed.moves)
    if freed.idle:
        counts = [f"{count} {resource}" for resource, count in Counter(freed.idle).items()]
        yield f"  idle slices keep it from being whole: {some_of(counts, _MOST_NAMES)}"


def _move(moved: MovedPod) -> str:
    amounts = ", ".join(f"{amount} {resource}" for resource, amount in moved.amounts.items())
    gpus = ", ".join(f"GPU{index}" for index in moved.to_gpus)
    controller = moved.controller or "without controller: nobody makes it again"
    return f"{moved.namespace}/{moved.pod} ({controller}; {amounts}) fits on {moved.to_node}: {gpus}"


def _how(report: StrandedReport) -> Iterator[str]:
    """Yield how pods are moved so that the room stays free for what it is meant for."""
    if report.pod is not None:
        yield "A pod made again in place of a moved one can take the room: kube-scheduler serves higher priority first."
        return
    yield "To move pods off a card, keep new pods away: kubectl annotate node NODE gpushare/unhealthy-gpus=INDEX"
    yield "Evict the pods, and remove the annotation when they run elsewhere: gpushare/unhealthy-gpus-"

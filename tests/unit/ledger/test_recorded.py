"""Tests of `gpushare_plugin.ledger.kube_scheduler` against what a real kube-scheduler decided: see `record.py`."""

import json
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import msgspec

from gpushare_plugin.kube.nodes import judged_node
from gpushare_plugin.kube.objects import ApiNode, ApiPod
from gpushare_plugin.kube.pods import judged_pod
from gpushare_plugin.ledger.demand import NOTHING
from gpushare_plugin.ledger.kube_scheduler import refusal
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.refusal import Cause

RECORDED = json.loads((Path(__file__).parent / "recorded" / "verdicts.json").read_text())
PAIRS = RECORDED["pairs"]

MISSING = "Insufficient "
REASONS: dict[str, Cause] = {
    "node(s) were unschedulable": "cordon",
    "node(s) had untolerated taint(s)": "taint",
    "node(s) didn't match Pod's node affinity/selector": "affinity",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]": "affinity",
    "pod affinity terms conflict": "affinity",
    "node(s) didn't have free ports for the requested pod ports": "port",
}
"""Our reason for each of kube-scheduler's but those of resources."""


Verdict = tuple[Cause | None, set[str]]
"""Our reason, None where the pod fits, and the resources that are missing."""


def pod(recorded: dict[str, Any]) -> Pod:
    """Return a pod as it is judged."""
    return judged_pod(msgspec.convert(recorded, ApiPod))


def expected(verdict: str) -> Verdict:
    """Return the verdict that is ours for one of kube-scheduler."""
    if verdict == "fits":
        return None, set()
    reasons = [part.removeprefix("1 ") for part in verdict.split(", ")]
    if reasons[0] in REASONS:
        return REASONS[reasons[0]], set()
    return "resources", {"pods" if each == "Too many pods" else each.removeprefix(MISSING) for each in reasons}


def found(pair: dict[str, Any]) -> Verdict:
    """Return what we say of a pair."""
    node = judged_node(msgspec.convert(pair["node"], ApiNode))
    used = reduce(add, (pod(each).needs.demand for each in pair["occupants"]), NOTHING)
    refused = refusal(pod(pair["pod"]), node, used)
    return (None, set()) if refused is None else (refused.cause, {each.name for each in refused.shortages})


def test_every_verdict_is_that_of_kube_scheduler() -> None:
    """Whether a pod fits, and if not, which kind of reason it is and which resources are missing."""
    wrong = {
        pair["node"]["metadata"]["name"]: {"found": found(pair), "expected": pair["verdict"]}
        for pair in PAIRS
        if found(pair) != expected(pair["verdict"])
    }
    assert wrong == {}


def test_every_kind_of_verdict_is_recorded() -> None:
    """The pairs are many, pods that fit are among them, and so is each reason that kube-scheduler can give."""
    kinds = [expected(pair["verdict"]) for pair in PAIRS]
    assert len(PAIRS) > 300
    assert RECORDED["version"] == "v1.36.2"
    assert {reason for reason, _ in kinds} == {None, *REASONS.values(), "resources"}
    resources = {"cpu", "memory", "ephemeral-storage", "pods", "hugepages-2Mi", "nvidia.com/gpu", "nvidia.com/gpu-10gb"}
    assert set().union(*(missing for _, missing in kinds)) == resources

"""Random preemptions: the answer is enough, has no pod too many, and its count of violations is right."""

import asyncio

import msgspec
from hypothesis import given, settings

from gpushare_plugin.extender.answers import preempt
from gpushare_plugin.extender.protocol import MetaPod, MetaVictims, PreemptionArguments, encode
from gpushare_plugin.kube.objects import ApiPod, Container, Metadata, PodSpec, ResourceRequirements
from gpushare_plugin.ledger.pod import Pod
from gpushare_plugin.ledger.request import PodRequest
from tests.unit.ledger.evictions import PRIORITY, RUNS, Case, cases
from tests.unit.ledger.objects import account


def waiting(asked: PodRequest) -> ApiPod:
    """Return a pod that asks for this, as kube-scheduler sends it."""
    containers = tuple(
        Container(
            name=each.name, resources=ResourceRequirements(limits={name: str(amount) for name, amount in each.amounts})
        )
        for each in asked.containers
    )
    labels = {"aliyun.com/gpu-count": str(asked.gpu_count)} if asked.gpu_count > 1 else {}
    return ApiPod(metadata=Metadata(uid="asked", labels=labels), spec=PodSpec(priority=PRIORITY, containers=containers))


def answered(case: Case) -> tuple[list[Pod], int] | None:
    """Return whom the extender evicts and how many violations it counts; None where the node is left out."""
    proposed = MetaVictims(pods=[MetaPod(uid=each.uid) for each in case.proposed], num_pdb_violations=7)
    pod = msgspec.Raw(encode(waiting(case.asked)))
    asked = PreemptionArguments(pod_object=pod, node_name_to_meta_victims={"node": proposed})
    made = account(case.node, pods=case.pods)
    answer = asyncio.run(preempt(made, case.disruptions, asked)).node_name_to_meta_victims.get("node")
    if answer is None:
        return None
    pods = {each.uid: each for each in case.pods}
    return [pods[each.uid] for each in answer.pods or ()], answer.num_pdb_violations


@settings(max_examples=RUNS, deadline=None)
@given(cases())
def test_random_preemptions_add_the_fewest_victims_that_are_enough(case: Case) -> None:
    """All proposed pods go, with the provably fewest others where these are not enough, and violations are counted.

    The most important victim comes first. `GPUSHARE_PREEMPTION_RUNS` sets how many cases are tried.
    """
    best, found = case.best, answered(case)
    if found is None or best is None:
        assert (found, best) == (None, None)
        return
    evicted, violations = found
    added = [each for each in evicted if each not in case.proposed]
    assert set(case.proposed) <= set(evicted)
    assert len(evicted) == len(set(evicted))
    assert case.enough(added)
    assert len(added) == best[0]
    assert case.cost(added) == best
    assert violations == case.violations(evicted)
    assert [each.priority for each in evicted] == sorted((each.priority for each in evicted), reverse=True)

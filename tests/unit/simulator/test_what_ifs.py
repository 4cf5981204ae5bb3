"""Tests of what is changed before a simulation."""

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.scenario import Scenario, scenario
from gpushare_plugin.simulator.spelled import change, written_nodes
from gpushare_plugin.simulator.what_ifs import FoundNode, WhatIfs

T4, LARGE_T4 = NodeKind(8_000, 65_536, 1, "NVIDIA T4"), NodeKind(32_000, 262_144, 4, "NVIDIA T4")
A100, A100_80 = NodeKind(96_000, 786_432, 8, "A100"), NodeKind(96_000, 786_432, 8, "A100-80")
FOUND = [FoundNode(f"n{place}", kind) for place, kind in enumerate((T4, LARGE_T4, A100, LARGE_T4, A100_80))]
PODS = (PodKind(1_000, 1, 1, 81, frozenset({"A100"})), PodKind(1_000, 1, 1, 81), PodKind(1_000, 1, 2), PodKind(1, 1, 0))


def changed(added: str = "", removed: str = "", pods: str = "") -> Scenario:
    """Return a small cluster after changes that are written with a space in between."""
    what_ifs = WhatIfs(tuple(map(written_nodes, added.split())), removed.split(), tuple(map(change, pods.split())))
    return scenario(FOUND, lambda _: PODS, "Nodes and pods from a test", what_ifs)


def test_without_changes_everything_stays() -> None:
    """And nothing is said to be changed."""
    assert changed() == Scenario(changed().trace, "Nodes and pods from a test", [])
    assert (changed().trace.nodes, changed().trace.pods) == (tuple(node.kind for node in FOUND), PODS)


def test_added_nodes_are_like_the_commonest_of_their_model() -> None:
    """A whole word of the name of one model is enough, in any case."""
    assert changed("2xt4").trace.nodes[len(FOUND) :] == (LARGE_T4, LARGE_T4)
    assert changed("10xA100").changes == ["10 nodes added, with 8 GPUs A100, 96 cores and 768 GiB each"]


@pytest.mark.parametrize(("written", "model"), [("a100", "A100"), ("T4", "T4"), ("A10", "A10")])
def test_a_written_shape_is_of_the_written_model(written: str, model: str) -> None:
    """Only the full name of a model means that model: nodes of a new model may be added."""
    (added,) = changed(f"1x{written},gpus=2,cpu=16,memory=64Gi").trace.nodes[len(FOUND) :]
    assert added == NodeKind(16_000, 65_536, 2, model)


def test_removed_nodes_are_the_first_of_a_model_or_named() -> None:
    """What was removed can be added again, because the nodes before are those that are copied."""
    found = changed(removed="2xT4 n2", added="1xA100")
    assert found.trace.nodes == (LARGE_T4, A100_80, A100)
    assert found.changes[:2] == ["2 of 3 nodes with GPUs NVIDIA T4 removed", "node n2 removed"]


def test_pods_ask_for_something_else() -> None:
    """All of a request at once, each pod once; the models that a pod accepts stay."""
    found = changed(pods="81%=2 2=0")
    assert found.trace.pods == (
        PodKind(1_000, 1, 2, 100, frozenset({"A100"})),
        PodKind(1_000, 1, 2),
        PodKind(1_000, 1, 0),
        PodKind(1, 1, 0),
    )
    assert found.changes == [
        "2 pods ask for 2 GPUs instead of 81 % of a GPU",
        "1 pod asks for no GPU instead of 2 GPUs",
    ]


def test_pods_are_asked_for_with_the_models_of_the_changed_nodes() -> None:
    """So a pod that wants a model accepts nodes that are added."""
    seen: list[set[str]] = []

    def pods_for(models: object) -> tuple[PodKind, ...]:
        seen.append(set(models))  # type: ignore[call-overload]
        return PODS

    added = (written_nodes("1xH100,gpus=1,cpu=1,memory=1Gi"),)
    scenario(FOUND, pods_for, "", WhatIfs(added, ["3xT4"]))
    assert seen == [{"A100", "A100-80", "H100"}]


@pytest.mark.parametrize(
    ("added", "removed", "pods", "said"),
    [
        (
            "1xH100",
            "",
            "",
            "found no node with GPUs H100; the models are A100, A100-80, NVIDIA T4; to add nodes of another",
        ),
        ("1xA10", "", "", "found no node with GPUs A10; the models are A100, A100-80, NVIDIA T4"),
        ("", "1xT", "", "found no node with GPUs T; the models are A100, A100-80, NVIDIA T4"),
        ("", "1xA10", "", "found no node with GPUs A10; the models are"),
        ("", "4xT4", "", "found 3 nodes with GPUs NVIDIA T4, expected 4 at least to remove"),
        ("", "n22", "", "found no node 'n22', expected the name of a node (did you mean n2?), or a number and a model"),
        ("", "3xT4 1xA100 1xA100-80", "", "found no node with a GPU after the changes"),
        (
            "",
            "",
            "70%=60%",
            "found no pod that asks for 70 % of a GPU; the pods ask for: 81 % of a GPU, 2 GPUs, no GPU",
        ),
        ("", "", "81%=70% 81%=2", "found several changes of pods that ask for 81 % of a GPU, expected one"),
        ("", "", "81%=0 2=0", "found no pod that asks for a GPU after the changes"),
    ],
)
def test_what_is_not_there_cannot_be_changed(added: str, removed: str, pods: str, said: str) -> None:
    """The message has what there is instead."""
    with pytest.raises(GpushareError) as refused:
        changed(added, removed, pods)
    assert said in str(refused.value)


def test_a_word_of_several_models_is_refused() -> None:
    """The message has the models."""
    found = [FoundNode("", NodeKind(1, 1, 1, f"NVIDIA {model}")) for model in ("H100 NVL", "H100 80GB HBM3", "L4")]
    with pytest.raises(GpushareError, match="found H100 in the names of NVIDIA H100 80GB HBM3, NVIDIA H100 NVL; write"):
        scenario(found, lambda _: PODS, "", WhatIfs((), ["1xH100"]))

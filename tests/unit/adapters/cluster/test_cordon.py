"""Tests of `gpushare_plugin.adapters.cluster.cordon`: what people write to take GPUs out."""

from collections.abc import Mapping

import pytest

from gpushare_plugin.adapters.cluster.cordon import cordon
from gpushare_plugin.model.health import Cordon
from tests.nodes import a_node

NODE = a_node(8192, 8192, 8192)
FIRST, SECOND, THIRD = (gpu.uuid for gpu in NODE.gpus)
BY_ANNOTATION = "taken out by annotation gpushare/unhealthy-gpus"
BY_CONFIGMAP = "taken out by ConfigMap kube-system/unhealthy-gpu-gpu-1"


def taken_out(annotation: str = "", configmap: Mapping[str, str] | None = None) -> Cordon:
    """Return what these take out on a node of three GPUs."""
    return cordon("gpu-1", annotation, configmap, NODE.gpus)


def test_nothing_is_taken_out_by_nobody() -> None:
    """Without either, and with empty lists, there is nothing to do and nothing to say."""
    assert taken_out() == taken_out(" ,\n") == taken_out(configmap={"gpus": ""}) == Cordon()


def test_lists_are_written_by_people() -> None:
    """Commas, spaces and lines, indices and UUIDs; who took a GPU out is told."""
    assert taken_out(f" 0\n{THIRD},0,") == Cordon({FIRST: BY_ANNOTATION, THIRD: BY_ANNOTATION})
    assert taken_out("0", {"gpus": "1"}) == Cordon({FIRST: BY_ANNOTATION, SECOND: BY_CONFIGMAP})


@pytest.mark.parametrize("name", ["7", "all", "*", "01", THIRD.lower(), "显卡"])
def test_what_is_no_gpu_is_told(name: str) -> None:
    """A slip of the hand keeps no other GPU in, and does not go unnoticed."""
    out = taken_out(f"0 {name}")
    assert out.gpus == {FIRST: BY_ANNOTATION}
    (notice,) = out.notices
    assert notice.startswith("annotation gpushare/unhealthy-gpus names no GPU of this node: ")
    assert notice.endswith("; expected are indices or UUIDs")


@pytest.mark.parametrize(
    ("configmap", "found"),
    [({}, "none"), ({"gpu": "0"}, '"gpu"'), ({"gpus": "1", "GPUS": "0"}, '"GPUS", "gpus"')],
)
def test_a_configmap_of_other_keys_is_told(configmap: dict[str, str], found: str) -> None:
    """Whoever made it wanted a GPU out, and a key that nobody reads takes none."""
    assert taken_out(configmap=configmap).notices == (
        f"ConfigMap kube-system/unhealthy-gpu-gpu-1 takes GPUs out by its key gpus and no other; found keys: {found}",
    )


def test_notices_are_short() -> None:
    """However much somebody writes, the notice names ten, and none in full that is long."""
    out = taken_out(" ".join(["0", *(str(number) for number in range(100, 100_000))]))
    assert out.gpus == {FIRST: BY_ANNOTATION}
    (notice,) = out.notices
    assert '"109" and 99890 more' in notice
    assert len(taken_out("x" * 100_000).notices[0]) < 300

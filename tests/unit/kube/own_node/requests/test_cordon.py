"""Tests of `gpushare_plugin.kube.own_node.requests.cordon`: what people write to cordon GPUs."""

from collections.abc import Mapping

import pytest

from gpushare_plugin.core.health import Cordon
from gpushare_plugin.kube.own_node.requests.cordon import cordon
from tests.nodes import a_node

NODE = a_node(8192, 8192, 8192)
FIRST, SECOND, THIRD = (gpu.uuid for gpu in NODE.cards)
BY_ANNOTATION = "cordoned by annotation gpushare/unhealthy-gpus"
BY_CONFIGMAP = "cordoned by ConfigMap kube-system/unhealthy-gpu-gpu-1"


def cordoned(annotation: str = "", configmap: Mapping[str, str] | None = None) -> Cordon:
    """Return what these cordon on a node of three GPUs."""
    return cordon("gpu-1", annotation, configmap, NODE.cards)


def test_no_gpu_is_cordoned_by_default() -> None:
    """Without either, and with empty lists, no GPU is cordoned and there is no warning."""
    assert cordoned() == cordoned(" ,\n") == cordoned(configmap={"gpus": ""}) == Cordon()


def test_lists_of_cordoned_gpus_are_read_as_people_write_them() -> None:
    """Commas, spaces and lines, indices and UUIDs; the reason says where a GPU is cordoned."""
    assert cordoned(f" 0\n{THIRD},0,") == Cordon({FIRST: BY_ANNOTATION, THIRD: BY_ANNOTATION})
    assert cordoned("0", {"gpus": "1"}) == Cordon({FIRST: BY_ANNOTATION, SECOND: BY_CONFIGMAP})


@pytest.mark.parametrize("name", ["7", "all", "*", "01", THIRD.lower(), "显卡"])
def test_an_entry_that_matches_no_gpu_is_reported(name: str) -> None:
    """A typing mistake is a warning, and the other GPUs of the list are cordoned."""
    out = cordoned(f"0 {name}")
    assert out.gpus == {FIRST: BY_ANNOTATION}
    (notice,) = out.notices
    assert notice.startswith("annotation gpushare/unhealthy-gpus matches no GPU of this node: ")
    assert notice.endswith("; expected indices or UUIDs")


@pytest.mark.parametrize(
    ("configmap", "found"),
    [({}, "none"), ({"gpu": "0"}, '"gpu"'), ({"gpus": "1", "GPUS": "0"}, '"GPUS", "gpus"')],
)
def test_a_configmap_with_other_keys_is_reported(configmap: dict[str, str], found: str) -> None:
    """A key that is not read cordons no GPU, and that is a warning."""
    assert cordoned(configmap=configmap).notices == (
        f"ConfigMap kube-system/unhealthy-gpu-gpu-1 cordons GPUs by its key gpus only; found keys: {found}",
    )


def test_notices_about_cordons_are_short() -> None:
    """However long the list is, the warning repeats ten names, and shortens long ones."""
    out = cordoned(" ".join(["0", *(str(number) for number in range(100, 100_000))]))
    assert out.gpus == {FIRST: BY_ANNOTATION}
    (notice,) = out.notices
    assert '"109" and 99890 more' in notice
    assert len(cordoned("x" * 100_000).notices[0]) < 300

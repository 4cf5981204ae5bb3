"""Tests of `gpushare_plugin.kube.own_node.requests.wanted_slices`."""

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import FailedGpu
from gpushare_plugin.kube.own_node.requests.wanted_slices import NOS_PREFIX, requested_slices
from gpushare_plugin.slices.wanted import WANTED_SLICES, SliceRequest, Wanted, encode
from tests.nodes import a_gpu, a_node

NODE = a_node(40960, 40960)
FIRST, SECOND = (gpu.uuid for gpu in NODE.cards)


def test_a_node_without_annotations_requests_nothing() -> None:
    """Its GPUs stay as they are."""
    assert requested_slices({"other": "1"}, NODE) == SliceRequest({})


def test_our_annotation_is_followed() -> None:
    """A GPU with nothing wanted is named all the same: it gets no slices."""
    wanted = Wanted({FIRST: {"10gb": 2, "20gb": 1}, SECOND: {}})
    assert requested_slices({WANTED_SLICES: encode(wanted)}, NODE) == SliceRequest(wanted.gpus)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version": 2}',
        '{"version": 1, "gpus": {"GPU": {"ten": 1}}}',
        '{"version": 1, "gpus": {"GPU": {"10gb": -1}}}',
        f'{{"version": 1, "gpus": {{"{FIRST}": {{"10gb": 1000000000}}}}}}',
        "[" * 100_000,
    ],
)
def test_an_annotation_that_cannot_be_read_changes_nothing(text: str) -> None:
    """Nor does what people wrote for nos: nobody knows for which GPUs it counts."""
    request = requested_slices({WANTED_SLICES: text, f"{NOS_PREFIX}0-10gb": "1"}, NODE)
    assert request.gpus is None
    (notice,) = request.notices
    assert notice.startswith(f"annotation {WANTED_SLICES}: ")
    assert notice.endswith("; the GPUs stay partitioned as they are")


def test_a_gpu_with_a_place_on_a_mig_card_stays_as_it_is() -> None:
    """The other one is followed."""
    wanted = Wanted({FIRST: {"10gb": 1, "3g.20gb@4": 1}, SECOND: {"10gb": 1}})
    request = requested_slices({WANTED_SLICES: encode(wanted)}, NODE)
    assert request.gpus == {SECOND: {"10gb": 1}}
    (notice,) = request.notices
    assert "'3g.20gb@4' found, a size such as 10gb expected; this GPU stays partitioned as it is" in notice


def test_gpus_of_another_node_are_told() -> None:
    """A GPU that is only unresponsive is this node's; what is wanted of it counts when it is back."""
    wanted = Wanted({"GPU-elsewhere": {"10gb": 1}})
    told = requested_slices({WANTED_SLICES: encode(wanted)}, NODE)
    (notice,) = told.notices
    assert notice == f'annotation {WANTED_SLICES} names GPUs that this node does not have: "GPU-elsewhere"'
    lost = replace(NODE, failed=(FailedGpu(2, "GPU is lost", "GPU-elsewhere", lost=True),))
    assert requested_slices({WANTED_SLICES: encode(wanted)}, lost) == SliceRequest(wanted.gpus)
    unnamed = replace(NODE, failed=(FailedGpu(2, "GPU is lost"),))
    assert requested_slices({WANTED_SLICES: encode(wanted)}, unnamed).notices == ()


def test_annotations_for_nos_count_for_gpus_that_ours_does_not_name() -> None:
    """GPUs by their index; 0 takes a size away."""
    by_hand = {f"{NOS_PREFIX}0-10gb": "2", f"{NOS_PREFIX}0-20gb": "0", f"{NOS_PREFIX}1-5gb": "3"}
    assert requested_slices(by_hand, NODE) == SliceRequest({FIRST: {"10gb": 2}, SECOND: {"5gb": 3}})
    ours = {WANTED_SLICES: encode(Wanted({FIRST: {"40gb": 1}}))}
    assert requested_slices(by_hand | ours, NODE) == SliceRequest({FIRST: {"40gb": 1}, SECOND: {"5gb": 3}})


@pytest.mark.parametrize(
    ("key", "value"),
    [("1-10gb", "many"), ("1-10gb", "-1"), ("1-10gb", "9999"), ("1-3g.20gb", "1"), ("7-10gb", "1"), ("x", "1")],
)
def test_annotations_for_nos_that_make_no_sense_are_told_and_passed_over(key: str, value: str) -> None:
    """The GPU that it is about stays as it is, and others are followed."""
    request = requested_slices(
        {f"{NOS_PREFIX}0-10gb": "2", f"{NOS_PREFIX}1-20gb": "1", f"{NOS_PREFIX}{key}": value}, NODE
    )
    assert request.gpus == {FIRST: {"10gb": 2}} | ({} if key.startswith("1-") else {SECOND: {"20gb": 1}})
    (notice,) = request.notices
    assert (
        f'annotation "{NOS_PREFIX}{key}": "{value}" found, expected {NOS_PREFIX}<index of a GPU>-<size such as 10gb>, '
        "and a number of slices from 0 to 1024; "
    ) in notice
    stays = f"GPU 1 ({SECOND}) stays partitioned as it is, or as {WANTED_SLICES} wants"
    stays = stays if key.startswith("1-") else "the annotation is ignored"
    assert notice.endswith(f"; {stays}")


def test_annotations_for_nos_name_a_gpu_by_the_index_of_its_card() -> None:
    """Whatever the order of the cards is."""
    node = replace(NODE, cards=(a_gpu(3), a_gpu(1)))
    assert requested_slices({f"{NOS_PREFIX}3-10gb": "1"}, node).gpus == {a_gpu(3).uuid: {"10gb": 1}}


def test_more_slices_than_a_gpu_can_have_are_not_followed() -> None:
    """Neither too many sizes nor too many slices in all; the GPU stays as it is, and others are followed."""
    second = {f"{NOS_PREFIX}1-10gb": "1"}
    sizes = {f"{NOS_PREFIX}0-{size}gb": "1" for size in range(1, 100)}
    for first, found in (
        (sizes, "99 sizes"),
        ({f"{NOS_PREFIX}0-1gb": "1000", f"{NOS_PREFIX}0-2gb": "25"}, "1025 slices"),
    ):
        request = requested_slices(first | second, NODE)
        assert request.gpus == {SECOND: {"10gb": 1}}
        (notice,) = request.notices
        assert notice.startswith(f"annotations {NOS_PREFIX}*: {found} of {FIRST} found, ")
        assert notice.endswith(" at most are possible; this GPU stays partitioned as it is")


def test_a_flood_of_annotations_is_told_in_few_sentences() -> None:
    """Thousands of annotations make no sense as one does."""
    request = requested_slices({f"{NOS_PREFIX}0-x{number}": "1" for number in range(3000)}, NODE)
    assert len(request.notices) == 21
    assert request.notices[-1] == "2,980 more annotations, or GPUs in them, make no sense"

"""Tests of `gpushare_plugin.slices.wanted`: the annotation says all that is remembered."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_plugin.slices.wanted import (
    LONGEST,
    MOST_FAILURES,
    Failure,
    KeptSlice,
    Wanted,
    WantedError,
    bounded,
    decode,
    encode,
)

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_the_annotation_has_the_documented_format() -> None:
    """A pod with one slice has an object, one with several a list; times are in UTC, keys are sorted."""
    wanted = Wanted(
        {"GPU-b": {}, "GPU-a": {"20gb": 1, "10gb": 2}},
        {
            "one": (KeptSlice("GPU-a", "10gb", NOON, "ns/one"),),
            "two": (KeptSlice("GPU-a", "10gb", NOON), KeptSlice("GPU-a", "20gb", NOON)),
        },
        {"three": Failure(NOON, 2)},
    )
    time = "2026-11-22T12:00:00Z"
    assert encode(wanted) == (
        f'{{"failed":{{"three":{{"at":"{time}","times":2}}}},'
        '"gpus":{"GPU-a":{"10gb":2,"20gb":1},"GPU-b":{}},'
        f'"pods":{{"one":{{"gpu":"GPU-a","pod":"ns/one","since":"{time}","slice":"10gb"}},'
        f'"two":[{{"gpu":"GPU-a","pod":"","since":"{time}","slice":"10gb"}},'
        f'{{"gpu":"GPU-a","pod":"","since":"{time}","slice":"20gb"}}]}},"version":1}}'
    )


_TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
_NAMES = st.sampled_from(["10gb", "1gb", "3g.20gb@4", "1g.5gb+me@0"])
_TEXT = st.sampled_from(["", "a", "GPU-1", 'ns/é"\n'])
_KEPT = st.builds(KeptSlice, _TEXT, _NAMES, _TIMES, _TEXT)


@settings(max_examples=50)
@given(
    st.builds(
        Wanted,
        st.dictionaries(_TEXT, st.dictionaries(_NAMES, st.just(1))),
        st.dictionaries(_TEXT, st.lists(_KEPT, min_size=1).map(tuple)),
        st.dictionaries(_TEXT, st.builds(Failure, _TIMES, st.integers(1, 1024))),
    )
)
def test_a_written_annotation_is_read_back(wanted: Wanted) -> None:
    """Nothing that is remembered is lost in the annotation."""
    assert decode(encode(wanted)) == wanted


def test_unknown_keys_are_ignored() -> None:
    """A later version 1 may have more fields."""
    assert decode('{"version":1,"more":[1],"gpus":{"GPU-a":{}}}') == Wanted({"GPU-a": {}})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "truncated"),
        ("[" * 100_000, ""),
        ("{}", "missing required field `version`; expected version 1 of it"),
        ('{"version":null}', "got `null`"),
        ('{"version":2}', "version '2' found: if gpushare wrote it, this gpushare is older"),
        ('{"version":1,"gpus":{"GPU-a":{"10gb":0}}}', ">= 1"),
        ('{"version":1,"gpus":{"GPU-a":{"10gb":1000000}}}', "<= 1024"),
        (
            json.dumps({"version": 1, "gpus": {"GPU-a": {f"{n}gb": 1 for n in range(1, 100)}}}),
            "99 sizes of GPU-a found",
        ),
        ('{"version":1,"gpus":{"GPU-a":{"1gb":1024,"2gb":1}}}', "1025 slices of GPU-a found, 1024 at most"),
        ('{"version":1,"gpus":{"GPU-a":{"large":1}}}', "'large' found, a size such as 10gb expected"),
        ('{"version":1,"gpus":{"GPU-a":{"3g.20gb@0":2}}}', "2 slices 3g.20gb@0 of GPU-a found, 1 expected"),
        ('{"version":1,"pods":{"a":{"gpu":"b","slice":"c","since":"2026-11-22T12:00:00Z"}}}', "'c' found"),
        ('{"version":1,"pods":{"a":{"gpu":"b","slice":"1gb","since":"2026-11-22T12:00:00"}}}', "timezone"),
        ('{"version":1,"failed":{"a":{"at":"yesterday"}}}', "RFC3339"),
    ],
)
def test_a_value_that_cannot_be_read_is_an_error_that_says_what_was_found(text: str, found: str) -> None:
    """Whatever stands in the annotation, the only error is WantedError, with the annotation and what is wrong."""
    with pytest.raises(WantedError) as caught:
        decode(text)
    assert "annotation gpushare/wanted-slices" in str(caught.value)
    assert found in str(caught.value)


def test_a_written_annotation_has_a_bounded_size() -> None:
    """All annotations of a Node share 256 KiB: the oldest failures are forgotten, and names of pods are left out."""
    failed = {f"uid-{number:04}": Failure(NOON + timedelta(seconds=number)) for number in range(1000)}
    found = bounded(Wanted(failed=failed))
    assert found.failed == {uid: failed[uid] for uid in sorted(failed)[-MOST_FAILURES:]}
    uids = [f"{number:036}" for number in range(768)]  # 16 GPUs, each with as many slices as MPS serves
    pods = {uid: (KeptSlice(f"GPU-{uid}", "100gb", NOON, f"{'n' * 63}/{'p' * 253}"),) for uid in uids}
    few = Wanted(pods=dict(list(pods.items())[:100]))
    assert bounded(few) == few
    many = bounded(Wanted(pods=pods, failed=failed))
    assert many.pods.keys() == pods.keys()
    assert {each.pod for kept in many.pods.values() for each in kept} == {""}
    assert len(encode(many)) < LONGEST + 32 * 1024

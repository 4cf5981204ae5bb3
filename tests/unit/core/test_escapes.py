"""Tests of `gpushare_plugin.core.escapes`: by which variables a process escapes, and by which it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.core.escapes import (
    OWN_NAMES,
    VISIBLE_DEVICES,
    Variables,
    hami_escapes,
    is_watched,
    mps_escapes,
    names_unseen_gpu,
)

FIRST, SECOND = "GPU-11111111-0000-4000-8000-000000000001", "GPU-22222222-0000-4000-8000-000000000002"
LIST, PIPE, PERCENT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
CHOSEN = "NVIDIA_VISIBLE_DEVICES"
MPS = {PIPE: "/mps/pipe", LIST: "0=4096M", PERCENT: "25", CHOSEN: FIRST}
REPLICA = {PIPE: "/mps/pipe", PERCENT: "25"}
SEVERAL = {PIPE: "/mps/pipe", LIST: "0=3072M,1=3072M"}
HAMI = {
    "CUDA_DEVICE_MEMORY_LIMIT_0": "4096m",
    "CUDA_DEVICE_SM_LIMIT": "25",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/cache",
}
TRAP = f"a {LIST} that names a GPU which it does not see by {VISIBLE_DEVICES}, so CUDA drops all limits"


@pytest.mark.parametrize(
    ("given_to", "changes", "expected"),
    [
        pytest.param(MPS, {}, [], id="as given"),
        pytest.param(MPS, {VISIBLE_DEVICES: "0"}, [], id="narrowed to its only GPU"),
        pytest.param(MPS, {CHOSEN: "void"}, [], id="the toolkit's CDI specification chooses none"),
        pytest.param(MPS, {CHOSEN: None}, [], id="no choice of GPUs is left"),
        pytest.param(REPLICA, {CHOSEN: "all"}, [], id="an image's choice, where the share has none"),
        pytest.param(MPS, {PERCENT: "10"}, [], id="less compute"),
        pytest.param(REPLICA, {LIST: "0=1G"}, [], id="a lower list than the default"),
        pytest.param(REPLICA, {LIST: "0=100G"}, [], id="a list cannot raise the default"),
        pytest.param(MPS, {"CUDA_MPS_LOG_DIRECTORY": "/log"}, [], id="a log directory"),
        pytest.param(MPS, {LIST: "0=2048M"}, [], id="less memory"),
        pytest.param(MPS, {LIST: "0=4G"}, [], id="the same memory in another unit"),
        pytest.param(MPS, {LIST: "0=4GB"}, [], id="the same memory in another spelling"),
        pytest.param(MPS, {LIST: "0=1G,0=40G"}, [f"another {LIST} than its container was given"], id="a GPU twice"),
        pytest.param(MPS, {LIST: "0=0M"}, [f"another {LIST} than its container was given"], id="a limit of 0"),
        pytest.param(MPS, {LIST: "0=1"}, [f"another {LIST} than its container was given"], id="no unit"),
        pytest.param(MPS, {LIST: "0=40G"}, [f"another {LIST} than its container was given"], id="another list"),
        pytest.param(MPS, {LIST: None}, [f"no {LIST}, which its container was given"], id="no list"),
        pytest.param(MPS, {LIST: "0=1G,1=1G"}, [TRAP], id="a list that is dropped"),
        pytest.param(REPLICA, {LIST: "0=1G,1=1G"}, [TRAP], id="a list that drops the default"),
        pytest.param(MPS, {PIPE: "/own"}, [f"another {PIPE} than its container was given"], id="another daemon"),
        pytest.param(MPS, {CHOSEN: "all"}, [f"another {CHOSEN} than its container was given"], id="all GPUs"),
        pytest.param(MPS, {PERCENT: "100"}, [f"another {PERCENT} than its container was given"], id="more compute"),
        *[
            pytest.param(
                MPS, {PERCENT: text}, [f"another {PERCENT} than its container was given"], id=f"{text!r} percent"
            )
            for text in ("0", "-5", "1_0", "nan", "")
        ],
        pytest.param(MPS, {PERCENT: None}, [f"no {PERCENT}, which its container was given"], id="all compute"),
    ],
)
def test_escapes_from_mps(given_to: Variables, changes: dict[str, str | None], expected: list[str]) -> None:
    """Each variable that lifts a limit is named, and what is harmless is not."""
    found = {name: value for name, value in {**given_to, **changes}.items() if value is not None}
    assert list(mps_escapes((FIRST,), given_to, found)) == expected


@pytest.mark.parametrize("visible", ["0", "1", SECOND, SECOND[:8], "1,7", "0,nonsense,1", ""])
def test_a_process_that_narrows_its_gpus_drops_a_list_of_several(visible: str) -> None:
    """A worker that sees one GPU of two has no limit at all with a list for both."""
    assert list(mps_escapes((FIRST, SECOND), SEVERAL, {**SEVERAL, VISIBLE_DEVICES: visible})) == [TRAP]
    assert list(hami_escapes((FIRST, SECOND), HAMI, {**HAMI, VISIBLE_DEVICES: visible})) == []


@pytest.mark.parametrize("visible", [None, "0,1", "1,0", f"{FIRST},{SECOND}", " 0 , 1 "])
def test_a_process_that_sees_all_gpus_keeps_its_list(visible: str | None) -> None:
    """Another order of the GPUs is no narrowing."""
    found = SEVERAL if visible is None else {**SEVERAL, VISIBLE_DEVICES: visible}
    assert list(mps_escapes((FIRST, SECOND), SEVERAL, found)) == []


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ("1=1G,0=3G", []),
        ("0=1G", [f"another {LIST} than its container was given"]),
        ("0=1G,1=4G", [f"another {LIST} than its container was given"]),
    ],
)
def test_a_list_for_several_gpus_may_be_lower_for_each(limits: str, expected: list[str]) -> None:
    """Every GPU has to be limited, and none to more memory than granted."""
    assert list(mps_escapes((FIRST, SECOND), SEVERAL, {**SEVERAL, LIST: limits})) == expected


@pytest.mark.parametrize(
    ("limits", "gpus", "visible", "expected"),
    [
        (f"{FIRST}=2G", (FIRST,), None, False),
        (f"{FIRST[:12]}=2G", (FIRST,), FIRST, False),
        (f"{SECOND}=2G", (FIRST,), None, True),
        (f"{SECOND}=2G", (FIRST, SECOND), FIRST, True),
        (f"{FIRST}=2G,{SECOND}=2G", (FIRST, SECOND), "1", True),
        (f"{FIRST}=2G", (FIRST, SECOND), "0", False),
        ("0=2G", (FIRST,), None, False),
        ("0=2G,0=3G", (FIRST,), None, False),
        ("1=2G", (FIRST,), None, True),
        ("nonsense", (FIRST,), None, False),
        ("", (FIRST,), None, False),
    ],
)
def test_lists_by_uuid_and_by_number(
    limits: str, gpus: tuple[str, ...], visible: str | None, *, expected: bool
) -> None:
    """A list names a GPU by its number in the process or by its UUID; each is checked against what the process sees."""
    assert names_unseen_gpu(limits, gpus, visible) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"CUDA_DEVICE_SM_LIMIT": "10"}, []),
        ({"CUDA_DEVICE_SM_LIMIT": "100"}, ["another CUDA_DEVICE_SM_LIMIT than its container was given"]),
        *[
            ({"CUDA_DEVICE_SM_LIMIT": text}, ["another CUDA_DEVICE_SM_LIMIT than its container was given"])
            for text in ("0", "-1", "010", "0.5", "k")
        ],
        ({"CUDA_DEVICE_SM_LIMIT_0": "25"}, []),
        ({"CUDA_DEVICE_SM_LIMIT_0": "100"}, ["a CUDA_DEVICE_SM_LIMIT_0 of its own"]),
        ({"CUDA_DEVICE_SM_LIMIT_1": "-1"}, ["a CUDA_DEVICE_SM_LIMIT_1 of its own"]),
        ({"CUDA_REDIRECT": "/lib/libcuda.so.1"}, ["a CUDA_REDIRECT of its own"]),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "80g"}, ["another CUDA_DEVICE_MEMORY_LIMIT_0 than its container was given"]),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": None}, ["no CUDA_DEVICE_MEMORY_LIMIT_0, which its container was given"]),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "80g"}, ["a CUDA_DEVICE_MEMORY_LIMIT of its own"]),
        ({"CUDA_DISABLE_CONTROL": "true"}, ["a CUDA_DISABLE_CONTROL of its own"]),
        ({"CUDA_MPS_PIPE_DIRECTORY": "/cache"}, []),
    ],
)
def test_escapes_from_hamis_library(changes: dict[str, str | None], expected: list[str]) -> None:
    """Each variable by which HAMi's library limits more, less or nothing is named."""
    found = {name: value for name, value in {**HAMI, **changes}.items() if value is not None}
    assert list(hami_escapes((FIRST,), HAMI, found)) == expected


def test_a_container_without_a_limit_of_compute_may_limit_itself() -> None:
    """Where no percentage was granted, none is escaped."""
    memory = {name: value for name, value in HAMI.items() if name != "CUDA_DEVICE_SM_LIMIT"}
    found = {**memory, "CUDA_DEVICE_SM_LIMIT": "0", "CUDA_DEVICE_SM_LIMIT_0": "50"}
    assert list(hami_escapes((FIRST,), memory, found)) == []


def test_only_variables_about_shares_are_watched() -> None:
    """Nothing else of an environment is kept, such as a password."""
    assert all(map(is_watched, [*OWN_NAMES, VISIBLE_DEVICES, LIST, PIPE, "NVIDIA_GPU_MEMORY_LIMIT", *HAMI]))
    assert not any(map(is_watched, ["PATH", "PASSWORD", "CUDA_VERSION", "NVIDIA_DRIVER_CAPABILITIES", ""]))


@given(st.text(), st.text(), st.lists(st.sampled_from([FIRST, SECOND]), max_size=2, unique=True))
def test_any_text_can_be_judged(limits: str, visible: str, gpus: list[str]) -> None:
    """A tenant writes the variables: whatever is in them raises nothing."""
    assert names_unseen_gpu(limits, gpus, visible) in {True, False}
    found = {LIST: limits, VISIBLE_DEVICES: visible, PERCENT: limits}
    assert list(mps_escapes(gpus, MPS, found)) == list(mps_escapes(gpus, MPS, found))

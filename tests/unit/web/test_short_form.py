"""The short form of a request: what people may write, and what they are told where they err."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.web.short_form import LONGEST, SharedMemoryUnit, ShortForm, ShortFormError, limits, parse

GIB = SharedMemoryUnit("aliyun.com/gpu-mem", 1024)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("24 GiB, 2 GPUs, A100", ShortForm(memory_mib=24 * 1024, gpus=2, models=("A100",))),
        ("512Mi;1 gpu", ShortForm(memory_mib=512, gpus=1)),
        ("30 %, 8 GiB, not T4", ShortForm(memory_mib=8192, compute=30, not_models=("T4",))),
        ("nvidia.com/gpu-10gb: 2", ShortForm(resources=(("nvidia.com/gpu-10gb", 2),))),
        ("aliyun.com/gpu-mem=9, L4, A10", ShortForm(resources=(("aliyun.com/gpu-mem", 9),), models=("L4", "A10"))),
        ("nvidia.com/gpu", ShortForm(resources=(("nvidia.com/gpu", 1),))),
    ],
)
def test_a_request_is_understood(text: str, meant: ShortForm) -> None:
    """Memory, GPUs, compute, resources by name, and models that are wanted or not."""
    assert parse(text) == meant


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("24 GB", "write `24 GiB`"),
        ("1.5 GiB", "amounts are whole numbers: write `1536 MiB`"),
        ("30GiB A100", "write the parts with commas between them, as in `24 GiB, 2 GPUs, A100`"),
        ("24 KiB", "write it in GiB or MiB"),
        ("24 GiB 2 GPUs", "write the parts with commas between them"),
        ("24 GiB, 8 GiB", "says twice how much of memory"),
        ("0 GiB", "0 found, a number from 1"),
        ("300 GPUs", "a number from 1 to 256 expected"),
        ("101 %", "a number from 1 to 100 expected"),
        ("A100", "asks for no amount"),
        ("", "asks for no amount"),
        ("1 GiB," * 20, "20 parts, 16 at most"),
        ("x" * 600, "600 characters, 512 at most"),
    ],
)
def test_a_mistake_says_what_to_write(text: str, told: str) -> None:
    """The message has what was found, and what to change."""
    with pytest.raises(ShortFormError, match=re.escape(told)):
        parse(text)


@given(st.text(max_size=LONGEST + 10))
def test_any_text_is_understood_or_refused_in_words(text: str) -> None:
    """No text is another error, and what is understood asks for something."""
    try:
        asked = parse(text)
    except ShortFormError:
        return
    assert limits(asked, GIB, "aliyun.com/gpu-core.percentage", "nvidia.com/gpu")


@given(
    st.integers(1, 10_000),
    st.sampled_from(["GiB", "Gi", "MiB", "mib"]),
    st.integers(1, 256),
    st.lists(st.sampled_from(["A100", "H100 80GB", "L4"]), unique=True),
)
def test_what_is_written_is_what_is_asked_for(number: int, unit: str, gpus: int, models: list[str]) -> None:
    """In any order, with any spaces: the amounts and the models come out as they were written."""
    parts = [f"{number} {unit}", f"{gpus}GPUs", *models]
    size = number * (1024 if unit.lower().startswith("g") else 1)
    assert parse(" , ".join(reversed(parts))) == ShortForm(size, gpus, models=tuple(reversed(models)))


@given(st.integers(1, 10**6), st.sampled_from([1, 512, 1024, 2048]))
def test_memory_is_rounded_up_to_whole_units(mib: int, unit: int) -> None:
    """A pod gets at least what was asked for, and less than a unit more."""
    found = limits(ShortForm(memory_mib=mib), SharedMemoryUnit("memory", unit), "cores", "gpu")
    assert mib <= int(found["memory"]) * unit < mib + unit


def test_gpus_without_memory_are_whole() -> None:
    """With memory, the number of GPUs says over how many the memory is split."""
    assert limits(parse("2 GPUs"), GIB, "cores", "nvidia.com/gpu") == {"nvidia.com/gpu": "2"}
    assert limits(parse("2 GPUs, 8 GiB"), GIB, "cores", "nvidia.com/gpu") == {"aliyun.com/gpu-mem": "8"}

"""Work as a count, which no machine's speed changes."""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def work(do: Callable[[], object]) -> int:
    """Return how many lines of Python `do` runs; each turn of a loop counts, and each step of a comprehension."""
    count = 0

    def step(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return step

    before = sys.gettrace()
    gc.collect()  # what ends then would count, too
    gc.disable()
    sys.settrace(step)
    try:
        do()
    finally:
        sys.settrace(before)
        gc.enable()
    return count

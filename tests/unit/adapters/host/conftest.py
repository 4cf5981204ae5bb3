"""The node that tests of NVML see."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pynvml
import pytest

from gpushare_plugin.testing.nvml import FakeNvml

Node = Callable[..., FakeNvml]


@pytest.fixture
def describe() -> Iterator[Node]:
    """Describe the node that this process sees."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> FakeNvml:
            node = stack.enter_context(FakeNvml(*arguments, **options))
            node.preload()
            return node

        yield make
        with contextlib.suppress(pynvml.NVMLError_Uninitialized):
            while True:
                pynvml.nvmlShutdown()

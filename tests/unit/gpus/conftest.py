"""The node that tests of NVML see."""

import contextlib
import threading
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
        # A test may refuse an attempt that is still being made: it must not initialise NVML for the test that follows.
        for thread in threading.enumerate():
            if thread.name == "nvml":
                thread.join()
        with contextlib.suppress(pynvml.NVMLError_Uninitialized):
            while True:
                pynvml.nvmlShutdown()

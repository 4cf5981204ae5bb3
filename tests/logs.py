"""What our own code logs in this process, where a test wants to know."""

import contextlib
import logging
from collections.abc import Iterator, MutableMapping
from typing import Any

import structlog
from structlog.testing import capture_logs


@contextlib.contextmanager
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """Yield the events that are logged until the end of the block, by loggers that are first used in it."""
    before = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    try:
        with capture_logs() as events:
            yield events
    finally:
        structlog.configure(wrapper_class=before)

"""Tests of `gpushare_plugin.base.log.queue`; what becomes of a daemon whose log is bad is tested with the daemons."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.log.queue import QueuedLog
from tests.process.daemon import full_pipe
from tests.waiting import PATIENCE, until_blocking

LOST = "log_lines_lost"


@contextlib.contextmanager
def logging_to(log: QueuedLog) -> Iterator[None]:
    """Have what the log itself tells go to it, as a daemon does."""
    before = structlog.get_config()
    structlog.configure(
        processors=[lambda _logger, _name, event: f"{event['event']}: {event['count']}"],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: log,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Make a pipe that is full."""
    reader, writer = full_pipe()
    with reader, writer:
        yield reader, writer


def first_lines(reader: BinaryIO) -> Iterator[str]:
    """Read the lines that have something in them."""
    return (line.decode().rstrip("\n") for line in reader if line != b"\n")


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=())), max_size=50))
def test_lines_are_written_as_they_came(lines: list[str]) -> None:
    """Every line is there at the end, in order, whatever is in it; what cannot be encoded gets a backslash."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "wb") as writer:
        queue = QueuedLog(writer.fileno())
        for line in lines:
            queue.info(line)
        queue.close(PATIENCE)
        writer.close()
        assert reader.read() == b"".join(line.encode(errors="backslashreplace") + b"\n" for line in lines)
    assert queue.dropped == 0


def test_lines_that_find_no_room_are_counted_and_told(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    """While nobody reads, so many bytes wait and no more; once somebody does, the rest is told as a number, once."""
    reader, writer = pipe
    queue = QueuedLog(writer.fileno(), capacity=1000)
    with logging_to(queue):
        for number in range(100):
            queue.info(f"{number:019}")
        assert queue.dropped == 50
        seen = first_lines(reader)
        assert [next(seen) for _ in range(50)] == [f"{number:019}" for number in range(50)]
        assert next(seen) == f"{LOST}: 50"
        queue.info("again")
        assert next(seen) == "again"
        queue.close(PATIENCE)
    assert queue.dropped == 50


def test_a_reader_that_comes_back_is_told_how_many_lines_were_lost(tmp_path: Path) -> None:
    """Lines without a reader are lost and counted; the next reader is told how many, after the first line it gets."""
    fifo = tmp_path / "log"
    os.mkfifo(fifo)
    first = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY)
    os.close(first)
    queue = QueuedLog(writer)
    with logging_to(queue):
        queue.info("one")
        queue.error("two")
        until_blocking(lambda: queue.dropped == 2)
        with os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as second:
            os.set_blocking(second.fileno(), True)
            queue.warning("three")
            assert second.readline() == b"three\n"
            assert second.readline() == f"{LOST}: 2\n".encode()
            queue.close(PATIENCE)
    os.close(writer)


def test_the_end_of_a_log_does_not_wait_for_its_reader(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    """A log that nobody reads is left behind, and what comes later hurts nobody."""
    reader, writer = pipe
    queue = QueuedLog(writer.fileno())
    queue.info("one")
    queue.close(0.01)
    queue.info("late")
    assert list(zip(first_lines(reader), range(1), strict=False)) == [("one", 0)]


def test_a_pipe_that_refuses_instead_of_waiting_loses_no_line(pipe: tuple[BinaryIO, BinaryIO]) -> None:
    """Where somebody who shares the pipe made it refuse instead of wait, no line is lost."""
    reader, writer = pipe
    os.set_blocking(writer.fileno(), False)
    queue = QueuedLog(writer.fileno())
    queue.info("x" * 200_000)
    seen = first_lines(reader)
    assert next(seen) == "x" * 200_000
    queue.close(PATIENCE)
    assert queue.dropped == 0


def test_lines_of_many_threads_stay_whole_and_in_order() -> None:
    """Lines of many threads are whole, and those of each in order."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as reader, os.fdopen(write, "wb") as writer:
        queue = QueuedLog(writer.fileno())

        def tell(name: int) -> None:
            for number in range(200):
                queue.info(f"{name} {number}")

        threads = [threading.Thread(target=tell, args=(name,)) for name in range(8)]
        content: list[bytes] = []
        reading = threading.Thread(target=lambda: content.append(reader.read()))
        for thread in (reading, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        queue.close(PATIENCE)
        writer.close()
        reading.join()
    pairs = [line.split() for line in content[0].decode().splitlines()]
    for name in range(8):
        assert [number for each, number in pairs if each == str(name)] == [str(number) for number in range(200)]


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_process_without_standard_error_writes_no_log(form: str) -> None:
    """Without standard error, the log is not written to whatever file gets the number."""
    command = (sys.executable, "-m", "gpushare_plugin", "run", "--config-file", "/nowhere", "--log-format", form)
    done = subprocess.run(["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *command], stdout=subprocess.PIPE, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


PRINTS = """
import sys, threading, logging
from gpushare_plugin.base.log.queue import queued_log
from gpushare_plugin.base.log.form import configure_log
from tests.waiting import until_blocking
with queued_log() as log:
    configure_log("json", "info", log)
    print("a library", "says\\nthis", file=sys.stderr)
    logging.getLogger("library").warning("and this")
"""


def test_text_that_libraries_print_is_an_event_of_the_log() -> None:
    """A library that prints on standard error waits for nobody either: each line is an event of the log."""
    done = subprocess.run([sys.executable, "-c", PRINTS], capture_output=True, check=True, text=True)
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    for line, text in zip(lines, ("a library says", "this", "and this"), strict=True):
        assert f'"found": "{text}"' in line
        assert '"event": "printed_to_stderr", "level": "error"' in line

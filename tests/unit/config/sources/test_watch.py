"""Watching the content of a file, in the ways files are changed."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from gpushare_plugin.config.loading.content import LARGEST_FILE
from gpushare_plugin.config.sources.choice import watch_content
from tests.waiting import PATIENCE

EVERY = 0.01
"""Seconds between two looks; the tests wait for what happens, however long that takes."""


@dataclass
class Watched:
    """A file that is watched, and how often it was said to have changed."""

    file: Path
    changes: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def changed(self) -> None:
        """Take note of a change."""
        self.changes += 1
        self._news.set()

    async def told(self) -> None:
        """Wait for the next change."""
        async with asyncio.timeout(PATIENCE):
            await self._news.wait()
        self._news.clear()

    async def changes_by(self, change: Callable[[], object]) -> None:
        """Make a change and wait until it is told, as one change."""
        before = self.changes
        change()
        await self.told()
        assert self.changes == before + 1


async def after_looks(count: int = 5) -> None:
    """Let the watcher look: sleeps of the same length in one event loop take turns, on a slow machine too."""
    for _ in range(count):
        await asyncio.sleep(EVERY)


@contextlib.asynccontextmanager
async def watching(file: Path) -> AsyncIterator[Watched]:
    """Watch a file from its content now on."""
    watched = Watched(file)
    task = asyncio.create_task(watch_content(file, watched.changed, EVERY))
    await asyncio.sleep(0)
    try:
        yield watched
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file that holds `one`."""
    path = tmp_path / "gpushare.yaml"
    path.write_text("one")
    return path


def replaced(file: Path, text: str) -> None:
    """Rename another file over `file`, as editors do."""
    other = file.with_suffix(".new")
    other.write_text(text)
    other.rename(file)


def vanish(file: Path) -> None:
    """Remove what is in the file's place."""
    if file.is_dir():
        file.rmdir()
    else:
        file.unlink()


async def test_new_content_is_told_once(file: Path) -> None:
    """Written over, also with the same size and the same time, renamed over, and grown."""
    async with watching(file) as watched:
        await watched.changes_by(lambda: file.write_text("two"))
        await watched.changes_by(lambda: replaced(file, "six"))
        await watched.changes_by(lambda: file.write_text("a longer text"))
        await after_looks()
        assert watched.changes == 3


async def test_a_change_within_one_tick_of_the_clock_is_seen(file: Path) -> None:
    """A file just written may be written again and show no other time or size."""

    def rewrite() -> None:
        before = file.stat()
        file.write_text("two")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)

    later = time.time_ns() + 3600 * 10**9  # new for as long as any machine may take
    os.utime(file, ns=(later, later))
    async with watching(file) as watched:
        await watched.changes_by(rewrite)


async def test_a_file_that_is_being_written_is_told_when_it_is_complete(file: Path) -> None:
    """Content that no two looks have found is not worth reading yet."""

    def write(number: int) -> None:
        file.write_text(f"part {number}")

    async with watching(file) as watched:
        for number in range(100):
            write(number)
            await asyncio.sleep(EVERY / 10)
        assert watched.changes == 0
        await watched.told()
        await after_looks()
        assert watched.changes == 1


async def test_a_configmap_mount_that_swaps_its_symlink_is_told(tmp_path: Path) -> None:
    """The kubelet renames `..data` to a new directory and leaves the file's own link as it was."""
    for version, text in (("..1", "one"), ("..2", "two")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "config.yaml"
    file.symlink_to("..data/config.yaml")

    def swap() -> None:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    async with watching(file) as watched:
        await watched.changes_by(swap)


async def test_the_same_content_again_is_no_change(file: Path) -> None:
    """Only what differs from the last content told is told: `two` comes right after three ways to change nothing."""
    async with watching(file) as watched:
        for change in (file.touch, lambda: file.write_text("one"), lambda: replaced(file, "one")):
            change()
            await after_looks()
        assert watched.changes == 0
        await watched.changes_by(lambda: file.write_text("two"))


async def test_a_file_that_goes_and_comes_back_is_a_change_each_time(file: Path) -> None:
    """Whoever reads it then can say that it is not there, and that it is there again."""
    async with watching(file) as watched:
        for text in ("one", "two"):
            await watched.changes_by(partial(vanish, file))
            await after_looks()
            await watched.changes_by(partial(replaced, file, text))


async def test_a_file_that_appears_is_a_change(tmp_path: Path) -> None:
    """Nothing is known that the content could equal."""
    file = tmp_path / "late.yaml"
    async with watching(file) as watched:
        await watched.changes_by(lambda: file.write_text("one"))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
async def test_a_pipe_or_a_directory_in_place_of_the_file_is_not_read(file: Path, make: Callable[[Path], None]) -> None:
    """A pipe or a directory in the file's place is a file that cannot be read, and holds nobody up."""

    def replace() -> None:
        vanish(file)
        make(file)

    async with watching(file) as watched:
        await watched.changes_by(replace)
        vanish(file)
        await watched.changes_by(lambda: replaced(file, "two"))


async def test_a_file_of_any_size_is_watched(file: Path) -> None:
    """Only so much is read as a config file can hold; more of it is refused whatever it is."""
    async with watching(file) as watched:
        with file.open("r+b") as stream:
            await watched.changes_by(lambda: stream.truncate(LARGEST_FILE * 1024))
            await after_looks()
        await watched.changes_by(lambda: file.write_text("one"))

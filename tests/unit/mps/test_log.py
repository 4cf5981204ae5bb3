"""Tests of `gpushare_plugin.mps.log`."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpushare_plugin.mps import log
from tests.logs import logged
from tests.waiting import until


@contextlib.asynccontextmanager
async def following(file: Path) -> AsyncIterator[list[Any]]:
    """Follow a log; yield what is reported of it."""
    with logged() as told:
        task = asyncio.create_task(log.follow(file, every=0.01))
        await asyncio.sleep(0)
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.wait([task])


def texts(told: list[Any]) -> list[str]:
    """Return what was said."""
    return [each["text"] for each in told]


def lines_of(told: list[Any]) -> int:
    """Return how many lines were told."""
    return sum("text" in each for each in told)


def left_out(told: list[Any]) -> int:
    """Return how many lines were said to be left out."""
    return sum(each.get("count", 0) for each in told)


async def test_lines_written_from_now_on_are_told(short_path: Path) -> None:
    """Old lines are not told again; new ones come with who said it, whole, whatever they look like."""
    file = short_path / "control.log"
    file.write_text("old\n")
    async with following(file) as told:
        with file.open("ab") as stream:
            stream.write(b"[2026-11-21 08:00:49.554 Control 24165] Server 7 exited with status 1\nhalf a ")
            stream.flush()
            await until(lambda: told)
            stream.write(b"line \xff\n")
            stream.flush()
            await until(lambda: len(told) == 2)
    assert told[0] == {
        "event": "mps_log_line",
        "log_level": "info",
        "path": str(file),
        "part": "Control",
        "pid": 24165,
        "text": "Server 7 exited with status 1",
    }
    assert texts(told)[1] == "half a line \ufffd"


async def test_routine_lines_are_told_for_debugging_only(short_path: Path) -> None:
    """Questions and clients leave such lines in the log."""
    file = short_path / "control.log"
    routine = ["Accepting connection...", "NEW UI", "Cmd:get_server_list", "100.0", "UI closed"]
    async with following(file) as told:
        file.write_text("".join(f"[2026-11-21 08:00:49.554 Control   165] {text}\n" for text in routine))
        await until(lambda: len(told) == len(routine))
    assert texts(told) == routine
    assert {each["log_level"] for each in told} == {"debug"}


async def test_a_log_that_begins_anew_is_told_from_its_beginning(short_path: Path) -> None:
    """A log may be cut or made anew."""
    file = short_path / "control.log"
    file.write_text("a long line of an earlier daemon\n")
    async with following(file) as told:
        file.unlink()
        file.write_text("new\n")
        await until(lambda: told)
    assert texts(told) == ["new"]


async def test_a_log_does_not_grow_for_ever(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies in memory: one that has grown too large is cut, and what its writer appends is reported."""
    monkeypatch.setattr(log, "LARGEST_LOG", 10)
    file = short_path / "control.log"
    async with following(file) as told:
        with file.open("a") as stream:
            print("more than ten bytes", file=stream, flush=True)
            await until(lambda: told and file.stat().st_size == 0)
            print("after", file=stream, flush=True)
            await until(lambda: len(told) == 2)
    assert texts(told) == ["more than ten bytes", "after"]


async def test_junk_does_not_fill_our_log(short_path: Path) -> None:
    """Of ten thousand lines few are reported, and the others are counted; what comes later is reported again."""
    file = short_path / "control.log"
    began = asyncio.get_running_loop().time()
    async with following(file) as told:
        file.write_text("".join(f'[now Control 7] Unknown command "{number}"\n' for number in range(10_000)))
        await until(lambda: lines_of(told) + left_out(told) == 10_000, lambda: str(len(told)))
        seconds = asyncio.get_running_loop().time() - began
        assert lines_of(told) <= log.AT_ONCE + log.EVENTS_A_SECOND * seconds
        with file.open("a") as stream:
            stream.write("[now Control 7] Server 7 exited with status 1\n")
        await until(lambda: lines_of(told) + left_out(told) == 10_001)


async def test_a_line_without_an_end_is_cut(short_path: Path) -> None:
    """A line of any length is reported by its beginning, and takes no more memory than that."""
    file = short_path / "server.log"
    async with following(file) as told:
        file.write_bytes(b"x" * 1_000_000 + b"\nafter\n")
        await until(lambda: len(told) == 2)
    assert texts(told)[1] == "after"
    assert set(texts(told)[0]) == {"x"}
    assert len(texts(told)[0]) <= log.LONGEST_LINE


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_a_link_or_a_pipe_in_place_of_the_log_is_not_followed(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A link is neither read nor cut, and a pipe holds nobody up; once the log is a file again, it is told."""
    monkeypatch.setattr(log, "LARGEST_LOG", 10)
    file, victim = short_path / "control.log", short_path / "victim"
    victim.write_text("old\n")
    if kind == "link":
        file.symlink_to(victim)
    else:
        os.mkfifo(file)
    looks, size = list[Path](), log._size  # noqa: SLF001 - what each look begins with

    def look(path: Path) -> int:
        looks.append(path)
        return size(path)

    monkeypatch.setattr(log, "_size", look)
    async with following(file) as told:
        with victim.open("a") as stream:
            stream.write("somebody's secrets\n")
        before = len(looks)
        await until(lambda: len(looks) >= before + 3)
        file.unlink()
        file.write_text("new\n")
        await until(lambda: told)
    assert texts(told) == ["new"]
    assert victim.read_text() == "old\nsomebody's secrets\n"

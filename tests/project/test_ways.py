"""Tests of `tests.project.ways` and of the recorder in each program: functions count, imports do not."""

import asyncio
import json
import socket
import sys
from pathlib import Path

import pytest

from tests.project import ways
from tests.project.traced import START, STOP
from tests.waiting import until

MAIN = """\
import sys
from sample.asked import Asked
for _ in sys.stdin:
    Asked.go()
    print(flush=True)
"""
ASKED = """\
from sample.decorator import decorator
class Asked:
    @decorator
    def go():
        import sample.late
"""
PROGRAM = {
    "__init__.py": "",
    "__main__.py": MAIN,
    "asked.py": ASKED,
    "decorator.py": "def decorator(function):\n    return function",
    "late.py": "from sample.used import helper\nhelper()\nclass Late: pass",
    "used.py": "def helper(): pass",
}
"""A package in which only `asked` has a function that runs when something is asked; the others run at imports."""


async def test_functions_alone_count_as_part_of_a_way(short_path: Path) -> None:
    """Bodies of modules and classes do not count, nor decorators and calls at their imports."""
    (short_path / "sample").mkdir()
    for name, text in PROGRAM.items():
        (short_path / "sample" / name).write_text(text)
    path = short_path / "recorder"
    command = ("-m", "tests.project.traced", path, sys.executable, "-m", "sample")
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": f"{ways.ROOT}:{short_path}"},
    )
    assert program.stdin is not None
    assert program.stdout is not None
    await until(path.exists)
    with socket.socket(socket.AF_UNIX) as recorder:
        recorder.connect(str(path))
        for expected in ([["asked.py", "Asked.go"]],) * 2:
            assert await asyncio.to_thread(ways.asked, recorder, START) == b"\n"
            program.stdin.write(b"go\n")
            await program.stdout.readline()
            assert json.loads(await asyncio.to_thread(ways.asked, recorder, STOP)) == expected
    program.stdin.close()
    assert await program.wait() == 0


async def test_the_way_through_the_extender_has_modules(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is one of ours."""
    monkeypatch.setattr(ways, "IDLE", 0)
    (way,) = await ways.extender_way(short_path)
    modules = {module for _, module, _ in way.functions}
    assert len(modules) > 10
    assert all((ways.ROOT / "gpushare_plugin" / each).exists() for each in modules)
    assert str(way).splitlines()[0].startswith(f"{way.title}: {len(modules)} modules (extender ")

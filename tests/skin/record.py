"""Writes the golden files again: `python -m tests.skin.record`, or with the names of scenes only theirs."""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from tests.skin import commands, extender, kubelet, mig, node, partitioner, people
from tests.skin.golden import GOLDEN, Texts

SCENES: dict[str, Callable[[Path], Awaitable[Texts]]] = {
    "commands": commands.recorded,
    "kubelet": kubelet.recorded,
    "node": node.recorded,
    "extender": extender.recorded,
    "people": people.recorded,
    "mig": mig.recorded,
    "partitioner": partitioner.recorded,
}
"""Each scene by its name: it has a folder of its own to work in, with a short path, and returns its texts."""


def write(texts: Texts) -> None:
    """Write golden files."""
    for name, text in texts.items():
        file = GOLDEN / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def main(names: list[str]) -> None:
    """Record scenes; with all of them, files that none has any more are removed."""
    if unknown := [name for name in names if name not in SCENES]:
        raise SystemExit(f"no scene {_quoted(unknown)}; the scenes are {_quoted(SCENES)}")
    kept: set[str] = set()
    for name in names or SCENES:
        with tempfile.TemporaryDirectory(dir="/tmp", prefix="gs-") as folder:
            texts = asyncio.run(_awaited(SCENES[name](Path(folder))))
        write(texts)
        kept |= texts.keys()
    if not names:
        for file in GOLDEN.rglob("*"):
            if file.is_file() and str(file.relative_to(GOLDEN)) not in kept:
                file.unlink()


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


async def _awaited(texts: Awaitable[Texts]) -> Texts:
    return await texts


if __name__ == "__main__":
    main(sys.argv[1:])

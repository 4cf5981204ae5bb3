"""What commands print on a terminal, as pictures in docs/; `make generate` makes them anew."""

import asyncio
import io
import shlex
import tempfile
from pathlib import Path

from rich.console import Console

from gpushare_plugin.testing.cluster import ApiServer
from tests.browser.clusters import a_cluster
from tests.browser.views import PICTURES
from tests.process.daemon import gpushare

ROOT = PICTURES.parents[1]
NODES = 12

SCREENS = {
    "list": "list --simulate examples/gpus/four-a100.yaml --config-file examples/configs/per-gpu.yaml",
    "inspect": "inspect -o blocks",
}
"""The commands, by the names of their pictures."""

_FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<style>
text {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: {char_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
{matrix}
</g>
</svg>
"""
"""A screen as rich draws it, without fonts of another server."""


async def screens() -> dict[Path, str]:
    """Run the commands, and return a picture of what each prints, by its file."""
    made = {}
    async with ApiServer() as server:
        a_cluster(server, NODES)
        with tempfile.TemporaryDirectory() as folder:
            environment = {"KUBECONFIG": str(server.kubeconfig(Path(folder, "config"))), "COLUMNS": "120"}
            for name, command in SCREENS.items():
                done = await gpushare(*shlex.split(command), environment=environment)
                made[PICTURES / f"{name}.svg"] = picture(name, f"$ gpushare {command}\n{done.output}")
    return made


def picture(name: str, text: str) -> str:
    """Return a picture of a terminal that shows a text."""
    width = max(map(len, text.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(text.rstrip(), highlight=False, markup=False)
    return console.export_svg(title="", code_format=_FRAME, unique_id=name)


if __name__ == "__main__":
    for file, text in asyncio.run(screens()).items():
        file.write_text(text)

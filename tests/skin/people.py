"""What `inspect` and `explain` show of a cluster, for people and as JSON."""

from pathlib import Path

from gpushare_plugin.testing.cluster import ApiServer
from tests.skin.cluster import create
from tests.skin.commands import run, told
from tests.skin.golden import Texts

ASKED: dict[str, tuple[str, ...]] = {
    "inspect.txt": ("inspect",),
    "inspect-details.txt": ("inspect", "-d"),
    "inspect-wide.txt": ("inspect", "-o", "wide"),
    "inspect-blocks.txt": ("inspect", "-o", "blocks"),
    "inspect.json": ("inspect", "-o", "json"),
    "inspect-slices.txt": ("inspect", "slices"),
    "inspect-unknown.txt": ("inspect", "nowhere"),
    "explain-large.txt": ("explain", "large", "-n", "team"),
    "explain-large.json": ("explain", "large", "-n", "team", "-o", "json"),
    "explain-slice.txt": ("explain", "slice", "-n", "team"),
    "explain-held.txt": ("explain", "held", "-n", "team"),
    "explain-stranded.txt": ("explain", "--stranded"),
    "explain-stranded.json": ("explain", "--stranded", "-o", "json"),
    "explain-important-stranded.txt": ("explain", "important", "-n", "team", "--stranded"),
    "explain-unknown.txt": ("explain", "nobody", "-n", "team"),
}


async def recorded(folder: Path) -> Texts:
    """Return the outputs of both commands."""
    async with ApiServer() as server:
        create(server)
        environment = {"KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig"))}
        return {
            f"cluster/{name}": told(await run(*arguments, environment=environment), {"folder": folder})
            for name, arguments in ASKED.items()
        }

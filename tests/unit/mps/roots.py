"""What tests of MPS start from: an MPS root, and the UUIDs of GPUs."""

from pathlib import Path

from gpushare_plugin.mps.exchange import MpsRoot

UUIDS = tuple(f"GPU-{index:08x}-0000-4000-8000-{index:012x}" for index in range(4))


def make_root(folder: Path) -> MpsRoot:
    """Return an MPS root in `folder` that has the directories the daemon needs."""
    root = MpsRoot(folder / "mps")
    for directory in (root.path, root.pipe, root.log):
        directory.mkdir()
    return root

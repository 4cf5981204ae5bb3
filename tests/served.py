"""What `gpushare mps` is to a daemon, without MPS."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.exchange import write_message
from gpushare_plugin.mps.exchange import MpsGpu, MpsRoot, MpsSettings, MpsStatus


@contextmanager
def served_by_mps(root: MpsRoot, inventory: Inventory) -> Iterator[None]:
    """Serve every GPU of a node, as far as its daemon can see."""
    root.path.mkdir()
    gpus = tuple(MpsGpu(uuid=gpu.uuid) for gpu in inventory.cards)
    write_message(root.status, MpsStatus(in_force=MpsSettings(gpus=gpus)))
    with lock(root.lock):
        yield

"""Every attack there is."""

from tests.process.attack import files, peers, sockets
from tests.process.attack.table import ATTACKS, Attack

__all__ = ["ATTACKS", "Attack", "files", "peers", "sockets"]

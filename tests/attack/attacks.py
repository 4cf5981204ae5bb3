"""Every attack there is."""

from tests.attack import files, peers, sockets
from tests.attack.table import ATTACKS, Attack

__all__ = ["ATTACKS", "Attack", "files", "peers", "sockets"]

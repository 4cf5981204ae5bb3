"""The namespaces of an MPS server, by protocol 3: one for each container, named by the units of the container."""

from collections.abc import Iterable
from hashlib import blake2s
from typing import Literal

from gpushare_plugin.base.structs import Struct

MpsProtocol = Literal[2, 3]
"""The protocol of an MPS control daemon: 2, or 3, which knows namespaces."""

WITH_NAMESPACES: Literal[3] = 3
"""The protocol with namespaces."""

SERVER = "gpushare"
"""The name of the MPS server, which serves all GPUs under MPS; its sockets are in a folder of this name.

Lower case, digits and underscores, up to 64 characters, as the name of a namespace: NVIDIA, "Multi-Process Service",
MPS v3 Interface.
"""

NAMESPACE_NAME = 18
"""Characters in the name of a namespace: the path of its socket has to be short."""


LONGEST_SOCKET = f"{SERVER}/{'n' * NAMESPACE_NAME}/control"
"""The longest path of a socket of MPS below the pipe directory."""


class ContainerNamespace(Struct, frozen=True):
    """A namespace: the limits of each process of one container, on each of its GPUs."""

    name: str
    """The name, the same for the same units."""
    memory_limit_mib: int
    """The limit of memory in MiB."""
    active_thread_percentage: int | None = None
    """The limit of compute in percent; None without a limit."""


def namespace_name(ids: Iterable[str]) -> str:
    """Return the name of the namespace for a container with the units `ids`: NAMESPACE_NAME characters."""
    return f"c_{blake2s(','.join(sorted(ids)).encode(), digest_size=8).hexdigest()}"

"""Whether a program listens at a Unix socket of the node."""

import errno
import socket

from gpushare_plugin.doctor.node.host import HostRoot

_PATIENCE = 2.0
"""Seconds that a connection to a local socket may take."""
_LONGEST_PATH = 107


def listens(host: HostRoot, path: str) -> bool | None:
    """Return whether a program listens at a Unix socket of the node; None where this process may not ask.

    Connects and says nothing, which changes nothing for the listener. A program has a socket of packets, such as that
    of the MPS control daemon, where the kernel refuses the connection for its type (EPROTOTYPE in unix(7)).
    """
    if not host.is_socket(path):
        return False
    place = str(host.resolved(path))
    if len(place) > _LONGEST_PATH:
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(place)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            if error.errno == errno.EPROTOTYPE:
                return True
            host.note(path, error)
            return None
    return True

"""Ports for servers that are told where to listen."""

import errno
import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

_CHOSEN_BY_KERNEL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST, _LAST = 20_000, 29_999
"""Between the well-known ports and those of Services of type NodePort."""


def claim_port() -> int:
    """Return a port of the loopback interface that is this process's until it ends.

    It is none of those that the kernel chooses for outgoing connections and for servers at port 0. Test processes agree
    on it by an abstract Unix socket of its number, which is known in the same network namespace as the port. Raises
    OSError where every port is taken.
    """
    for port in _ports():
        if _claimed(port) and _bindable(port):
            return port
    raise OSError(errno.EADDRINUSE, f"every port from {_FIRST} to {_LAST} is taken")


def _ports() -> Iterator[int]:
    """Yield the ports to try, from another one in each process, so that they seldom try the same ones."""
    first, last = map(int, _CHOSEN_BY_KERNEL.read_text().split())
    everything = range(_FIRST, _LAST + 1)
    # Where the kernel may choose any of them, a claim keeps at least other tests away.
    ports = [port for port in everything if not first <= port <= last] or everything
    begin = os.getpid() * 61 % len(ports)
    return itertools.chain(ports[begin:], ports[:begin])


def _claimed(port: int) -> bool:
    """Claim a port; return whether nobody else has."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0gpushare-test-port-{port}")
    except OSError:
        claim.close()
        return False
    # It stays open until this process ends.
    claim.detach()
    return True


def _bindable(port: int) -> bool:
    """Return whether a server can have a port now, on any interface: other programs make no claims."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True

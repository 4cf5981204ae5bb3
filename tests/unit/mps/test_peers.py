"""Tests of `gpushare_plugin.mps.peers`, asked about this process itself."""

import contextlib
import os
import resource
import socket

from gpushare_plugin.mps.peers import Peer, peers

CONNECTIONS = 50
SPARE = 10
"""Descriptors that are left for the look itself."""


def test_many_connections_take_few_descriptors() -> None:
    """Any process may connect as often as it likes: one connection is borrowed at a time."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        ends = [stack.enter_context(end) for _ in range(CONNECTIONS) for end in socket.socketpair()]
        highest = max(end.fileno() for end in ends)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + SPARE, hard))
        assert Peer(os.getpid(), os.geteuid()) in peers(os.getpid())

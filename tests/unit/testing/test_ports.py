"""Tests of `gpushare_plugin.testing.ports`: ports of tests are nobody else's."""

import socket
import subprocess
import sys
from pathlib import Path

from gpushare_plugin.testing.ports import claim_port


def test_a_port_is_never_given_twice() -> None:
    """Each claim has its own port, which a server can have at once, and which the kernel gives to nobody else."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [claim_port() for _ in range(20)]
    assert len(set(ports)) == 20
    if last - first < 40_000:
        assert not [port for port in ports if first <= port <= last]
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_another_process_gets_another_port() -> None:
    """What one process has claimed, no other claims until it has ended."""
    script = "from gpushare_plugin.testing.ports import _claimed; import sys; print(_claimed(int(sys.argv[1])))"
    claim = [sys.executable, "-c", script]
    port = claim_port()
    assert subprocess.run([*claim, str(port)], capture_output=True, text=True, check=True).stdout == "False\n"

"""Tests of the nodes described as folders: what is described is what is there."""

import os
import socket
from pathlib import Path

import pytest

from gpushare_plugin.testing.hosts import NODES, HostDescription, built


@pytest.mark.parametrize("name", NODES)
def test_a_described_node_is_built(name: str, short_path: Path) -> None:
    """Files have their texts, links lead where they are said to lead, and programs listen at sockets."""
    host = NODES[name]
    with built(host, short_path) as folder:
        for path, text in host.files.items():
            place = folder / path.removeprefix("/")
            assert place.read_text() == text, path
        for path, target in host.links.items():
            assert os.readlink(folder / path.removeprefix("/")) == target  # noqa: PTH115 - as it is written
        for path in host.sockets:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(folder / path.removeprefix("/")))


def test_a_node_is_changed_by_parts() -> None:
    """Other texts, more files and fewer folders make another node; the described one stays as it is."""
    host = HostDescription({"/etc/a": "one", "/etc/b/c": "two"}, sockets=("/run/x.sock",))
    assert host.edited("/etc/a", "one", "1").files["/etc/a"] == "1"
    assert host.without("/etc/b", "/run/x.sock") == HostDescription({"/etc/a": "one"})
    assert (host + HostDescription({"/etc/a": "new"})).files == {"/etc/a": "new", "/etc/b/c": "two"}
    assert host.files["/etc/a"] == "one"
    with pytest.raises(ValueError, match="/etc/a has no 'two'"):
        host.edited("/etc/a", "two", "2")

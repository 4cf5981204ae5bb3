"""Tests of the versions of packages: from dpkg's file, and from RPM's database."""

import sqlite3
import struct
from pathlib import Path

import pytest

from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.packages import package_version

NAME, VERSION, STRING = 1000, 1001, 6


def header(name: str, version: str) -> bytes:
    """Return the header of a package as RPM's database has it: an index of its tags, and a store."""
    store = f"{name}\0{version}\0".encode()
    tags = ((NAME, STRING, 0, 1), (VERSION, STRING, len(name) + 1, 1))
    return struct.pack(">II", len(tags), len(store)) + b"".join(struct.pack(">4I", *tag) for tag in tags) + store


def database(place: Path, packages: dict[str, bytes]) -> None:
    """Write a database of RPM with the headers of packages, by their names."""
    place.parent.mkdir(parents=True)
    with sqlite3.connect(place) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY AUTOINCREMENT, blob BLOB NOT NULL)")
        connection.execute("CREATE TABLE Name (key 'TEXT' NOT NULL, hnum INTEGER NOT NULL, idx INTEGER NOT NULL)")
        for number, (name, blob) in enumerate(packages.items(), 1):
            connection.execute("INSERT INTO Packages VALUES (?, ?)", (number, blob))
            connection.execute("INSERT INTO Name VALUES (?, ?, 0)", (name, number))
    connection.close()


@pytest.mark.parametrize("folder", ["usr/lib/sysimage/rpm", "var/lib/rpm"])
def test_the_version_of_a_package_of_rpm_is_known(folder: str, tmp_path: Path) -> None:
    """It comes from the database, in which nothing changes, for the first name that is installed."""
    place = tmp_path / folder / "rpmdb.sqlite"
    database(place, {"other": header("other", "9"), "containerd.io": header("containerd.io", "1.7.28")})
    before = {each.name: each.read_bytes() for each in place.parent.iterdir()}
    assert package_version(HostRoot(tmp_path), "containerd", "containerd.io") == "1.7.28"
    assert package_version(HostRoot(tmp_path), "kubelet") == ""
    assert {each.name: each.read_bytes() for each in place.parent.iterdir()} == before


@pytest.mark.parametrize(
    "blob",
    [b"", b"\0\0\0", struct.pack(">II", 0xFFFFFFFF, 4), header("containerd", "1")[:20], b"\0" * 64],
    ids=["empty", "short", "too many tags", "cut", "zeros"],
)
def test_a_header_that_is_none_says_nothing(blob: bytes, tmp_path: Path) -> None:
    """A version that cannot be read is not known."""
    database(tmp_path / "var/lib/rpm/rpmdb.sqlite", {"containerd": blob})
    assert package_version(HostRoot(tmp_path), "containerd") == ""


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0 and no more"])
def test_a_file_that_is_no_database_says_nothing(content: bytes, tmp_path: Path) -> None:
    """A version that cannot be read is not known."""
    place = tmp_path / "var/lib/rpm/rpmdb.sqlite"
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    assert package_version(HostRoot(tmp_path), "containerd") == ""


def test_a_look_up_in_a_database_has_an_end(tmp_path: Path) -> None:
    """A database whose table of packages is an endless query does not keep doctor."""
    place = tmp_path / "var/lib/rpm/rpmdb.sqlite"
    place.parent.mkdir(parents=True)
    with sqlite3.connect(place) as connection:
        connection.execute(
            "CREATE VIEW Packages AS WITH RECURSIVE n(hnum) AS (SELECT 1 UNION ALL SELECT hnum + 1 FROM n) "
            "SELECT hnum, '' AS blob FROM n"
        )
        connection.execute("CREATE TABLE Name (key 'TEXT', hnum INTEGER, idx INTEGER)")
        connection.execute("INSERT INTO Name VALUES ('containerd', -1, 0)")
    connection.close()
    assert package_version(HostRoot(tmp_path), "containerd") == ""

"""The versions of packages on the node, from the files of the package manager.

Facts: dpkg-query(1) and deb-control(5): `/var/lib/dpkg/status` has a paragraph for each package, with the fields
Package, Status and Version. RPM's database, `rpmdb.sqlite` of RPM 4.16 and newer: rpm-software-management/rpm,
lib/backend/sqlite.cc (the tables Packages and Name, of which a removed package leaves both),
docs/manual/format_header.md and include/rpm/rpmtag.h (a header is an index of four numbers of 32 bits for each tag, and
a store; the tag VERSION is 1001). Its place: /usr/lib/sysimage/rpm (Fedora 36 and newer, SUSE), before /var/lib/rpm.
The databases of Berkeley DB (RPM of RHEL 8) and `ndb` are not read, so packages there are not known.
"""

import re
import struct
from collections.abc import Iterator

from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError

_STATUS = "/var/lib/dpkg/status"
_LARGEST = 32 << 20
"""Bytes; a server with two thousand packages has some three million."""
_UPSTREAM = re.compile(r"^(?:\d+:)?([^-~+]+)")
_RPM_DIRECTORIES = ("/usr/lib/sysimage/rpm", "/var/lib/rpm")
_RPM_DATABASES = tuple(f"{directory}/rpmdb.sqlite" for directory in _RPM_DIRECTORIES)
_MAGIC = b"SQLite format 3\0"
_OF_NAME = "SELECT substr(blob, 1, ?) FROM Packages WHERE hnum IN (SELECT hnum FROM Name WHERE key = ?) LIMIT 4"
_MOST_STEPS = 1_000_000
"""Instructions of SQLite's machine after which a look-up ends: one needs some hundred."""
_VERSION, _STRING = 1001, 6
_MOST_TAGS = 1024


def has_packages(host: HostRoot) -> bool:
    """Return whether the node has a package manager, so that packages put their files into the usual folders."""
    return host.first(_STATUS, *_RPM_DIRECTORIES) is not None


def is_at_least(version: str, *numbers: int) -> bool:
    """Return whether a version is that of the first `numbers` or a later one, such as 1.18.1 of 1 and 18."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[: len(numbers)]) >= numbers


def package_version(host: HostRoot, *names: str) -> str:
    """Return the version of the first installed package of `names`, without epoch and revision; empty if unknown."""
    return _of_dpkg(host, names) or next(_of_rpm(host, names), "")


def _of_dpkg(host: HostRoot, names: tuple[str, ...]) -> str:
    try:
        status = host.text(_STATUS, _LARGEST) or ""
    except UnreadableError:
        return ""
    for name in names:
        paragraph = re.search(rf"^Package: {re.escape(name)}\n(?:.+\n)*", status, re.MULTILINE)
        if paragraph and "\nStatus: install ok installed" in paragraph.group():
            version = re.search(r"^Version: (\S+)", paragraph.group(), re.MULTILINE)
            return _upstream(version[1]) if version else ""
    return ""


def _of_rpm(host: HostRoot, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the versions of installed packages of RPM in the order of `names`."""
    path = host.first(*_RPM_DATABASES)
    if path is None:
        return
    place = host.resolved(path)
    try:
        if read_regular(place, len(_MAGIC)) != _MAGIC:
            return
    except OSError as error:
        host.note(path, error)
        return
    # Only nodes of RPM need SQLite.
    import sqlite3  # noqa: PLC0415

    try:
        # Without a lock, and without files beside the database: nothing on the node changes.
        connection = sqlite3.connect(f"{place.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            connection.set_progress_handler(lambda: 1, _MOST_STEPS)
            for name in names:
                for (header,) in connection.execute(_OF_NAME, (_LARGEST, name)):
                    if isinstance(header, bytes) and (version := _version_of(header)):
                        yield _upstream(version)
        finally:
            connection.close()
    except sqlite3.Error:
        return


def _version_of(header: bytes) -> str:
    """Return the version in the header of a package of RPM; empty where the header has none."""
    try:
        (tags,) = struct.unpack_from(">I", header)
        store = 8 + 16 * tags
        entries = struct.iter_unpack(">4I", header[8 : 8 + 16 * min(tags, _MOST_TAGS)])
        offset = next((at for tag, kind, at, _ in entries if (tag, kind) == (_VERSION, _STRING)), None)
    except struct.error:
        return ""
    return "" if offset is None else header[store + offset :].partition(b"\0")[0].decode(errors="replace")


def _upstream(version: str) -> str:
    found = _UPSTREAM.match(version)
    return found[1] if found else ""

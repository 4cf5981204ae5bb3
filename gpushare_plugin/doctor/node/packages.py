"""The versions of packages on the node, from the files of the package manager.

Facts: dpkg-query(1) and deb-control(5): `/var/lib/dpkg/status` has a paragraph for each package, with the fields
Package, Status and Version. The database of RPM is binary, so packages of RPM are not known.
"""

import re

from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError

_STATUS = "/var/lib/dpkg/status"
_LARGEST = 32 << 20
"""Bytes; a server with two thousand packages has some three million."""
_UPSTREAM = re.compile(r"^(?:\d+:)?([^-~+]+)")


def is_at_least(version: str, *numbers: int) -> bool:
    """Return whether a version is that of the first `numbers` or a later one, such as 1.18.1 of 1 and 18."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[: len(numbers)]) >= numbers


def package_version(host: HostRoot, *names: str) -> str:
    """Return the version of the first installed package of `names`, without epoch and revision; empty if unknown."""
    try:
        status = host.text(_STATUS, _LARGEST) or ""
    except UnreadableError:
        return ""
    for name in names:
        paragraph = re.search(rf"^Package: {re.escape(name)}\n(?:.+\n)*", status, re.MULTILINE)
        if paragraph and "\nStatus: install ok installed" in paragraph.group():
            version = re.search(r"^Version: (\S+)", paragraph.group(), re.MULTILINE)
            upstream = _UPSTREAM.match(version[1]) if version else None
            return upstream[1] if upstream else ""
    return ""

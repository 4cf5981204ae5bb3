"""The archive for a bug report: what doctor understood of the node, without names and secrets.

Files of the node are never copied: the archive has what was decoded, which has no passwords, variables, or labels by
its types. What names a machine, a person or a pod is replaced besides, wherever it stands.
"""

import io
import ipaddress
import re
import socket
import tarfile
from collections.abc import Mapping
from pathlib import Path

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.text import in_words, visible_json
from gpushare_plugin.doctor.examination import DoctorReport, Facts
from gpushare_plugin.doctor.words import lines_of
from gpushare_plugin.observe.parts import encode

LARGEST_MEMBER = 1 << 20
"""Bytes; a longer part of the archive is cut."""

_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\w)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-fA-F]{0,4}:[0-9a-fA-F:]*:[0-9a-fA-F.]*(?<!\.)(?!\w)")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s\"]+(?=@)")
_HOME = re.compile(r"(?<=/home/)[^/\s\"]+")
_SHORTEST_NAME = 3
"""Characters of a host name that is replaced; a shorter one would be found in other words."""


class BundleError(GpushareError):
    """The archive cannot be written; the message says where and why."""


class Redaction:
    """Replaces what names machines, people and pods; the same name gets the same replacement in all texts."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Replace also `names`, the names of this machine, with and without their domains."""
        both = {each for name in names for each in (name, name.partition(".")[0]) if len(each) >= _SHORTEST_NAME}
        found = sorted(both, key=len, reverse=True)
        either = "|".join(map(re.escape, found))
        self._names = re.compile(rf"(?<![\w-])(?:{either})(?![\w-])", re.IGNORECASE) if found else None
        self._uuids: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """Return `text` without names."""
        text = _UUID.sub(lambda match: self._numbered(match[0]), text)
        for pattern, instead in ((_CREDENTIALS, "…"), (_HOME, "…"), (_IPV6, self._address), (_IPV4, self._address)):
            text = pattern.sub(instead, text)
        return self._names.sub("<node>", text) if self._names else text

    def _numbered(self, uuid: str) -> str:
        """Return a UUID of the same form that only counts: whether two are the same can still be seen."""
        number = len(self._uuids)
        return self._uuids.setdefault(uuid.lower(), f"00000000-0000-0000-0000-{number:012x}")

    @staticmethod
    def _address(match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]  # such as a version or a PCI address
        # Addresses that every machine has name nobody.
        return match[0] if address.is_loopback or address.is_unspecified else "<address>"


def write_bundle(file: Path, facts: Facts, report: DoctorReport, names: tuple[str, ...]) -> int:
    """Write the archive to `file`, which must not exist yet, and return its size in bytes; raises BundleError.

    `names` are the names of this machine, to which its host name is added.
    """
    redacted = Redaction((*names, socket.gethostname()))
    members = {
        "report.txt": "\n".join(lines_of(report)) + "\n",
        "report.json": encode(report, indent=2),
        "facts.json": encode(facts, indent=2),
    }
    try:
        with file.open("xb") as target, tarfile.open(fileobj=target, mode="w:gz") as archive:
            _add(archive, {name: redacted(visible_json(text)) for name, text in members.items()})
        return file.stat().st_size
    except FileExistsError as error:
        raise BundleError(f"{file} exists already: remove the file, or choose another name") from error
    except OSError as error:
        raise BundleError(f"{file} cannot be written: {in_words(error)}") from error


def _add(archive: tarfile.TarFile, members: Mapping[str, str]) -> None:
    """Add texts to an archive, without the user, the time and the machine of this process."""
    for name, text in members.items():
        content = text.encode()[:LARGEST_MEMBER]
        member = tarfile.TarInfo(f"gpushare-doctor/{name}")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))

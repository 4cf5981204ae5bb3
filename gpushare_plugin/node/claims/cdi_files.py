"""The CDI specification of each prepared claim: what containers get by the claim, beside their cards.

The container runtime applies the specification after the variables of the pod, so a pod cannot override its limits.
Sources: cncf-tags/container-device-interface, SPEC.md, and pkg/cdi/spec.go for the names of files
(`GenerateTransientSpecName`); specs-go/version.go for the lowest version with names that begin with a digit.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.files.replacement import remove_file, replace_file
from gpushare_plugin.core.grant import Grant
from gpushare_plugin.gpus.cdi.own import need

Document = dict[str, Any]
"""A CDI specification, or a part of one, as JSON."""

LARGEST_FILE = 1 << 18
"""The size limit of a specification in bytes; gpushare never writes more."""

_VERSION = "0.5.0"
_MOUNT_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate")


def device_name(uid: str, request: str) -> str:
    """Return the name of the CDI device of a request, which no other request of any claim ever has."""
    return f"{uid}-{request}"


def qualified_name(driver: str, uid: str, request: str) -> str:
    """Return the fully qualified name of the CDI device of a request of a claim."""
    return f"{driver}/claim={device_name(uid, request)}"


def specification(driver: str, uid: str, grants: Mapping[str, Grant]) -> Document | None:
    """Return the CDI specification of a claim, from the grant of each request that adds something to the cards.

    None where no request adds anything: CDI forbids devices without edits.
    """
    devices = [
        {"name": device_name(uid, request), "containerEdits": edits}
        for request, grant in sorted(grants.items())
        if (edits := _edits(grant))
    ]
    return {"cdiVersion": _VERSION, "kind": f"{driver}/claim", "devices": devices} if devices else None


def described(document: Document | None) -> frozenset[str]:
    """Return the fully qualified names of the devices in the specification of a claim."""
    return frozenset(f"{document['kind']}={each['name']}" for each in document["devices"]) if document else frozenset()


class CdiFiles:
    """The files with the specifications of claims, in the directory of CDI for files that a reboot removes."""

    def __init__(self, directory: Path, driver: str) -> None:
        """Write into `directory` for the DRA driver `driver`."""
        self.directory = directory
        self._begin = f"{driver}-claim_"

    def keep(self, uid: str, document: Document | None) -> None:
        """Write the specification of a claim unless the file is there and the same; raises OSError."""
        if document is None:
            return
        need(self.directory)
        content, file = json.dumps(document), self.file(uid)
        if _content(file) != content.encode():
            replace_file(file, content)

    def remove(self, uid: str) -> None:
        """Remove the specification of a claim, if there is one; raises OSError."""
        remove_file(self.file(uid))

    def file(self, uid: str) -> Path:
        """Return the file for the specification of a claim, named as the CDI library names files."""
        return self.directory / f"{self._begin}{uid}.json"

    def uids(self) -> frozenset[str]:
        """Return the UIDs of the claims with a specification in the directory."""
        names = (file.name for file in self.directory.glob(f"{self._begin}*.json"))
        return frozenset(name.removeprefix(self._begin).removesuffix(".json") for name in names)


def _content(file: Path) -> bytes | None:
    try:
        return read_regular(file, LARGEST_FILE)
    except OSError:
        return None


def _edits(grant: Grant) -> Document:
    """Return what a grant adds to a container beside CDI devices, as edits of CDI."""
    edits = {
        "env": [f"{name}={value}" for name, value in grant.environment.items()],
        "deviceNodes": [
            {"path": each.container_path, "hostPath": each.host_path, "permissions": "rw"} for each in grant.devices
        ],
        "mounts": [
            {
                "hostPath": each.host_path,
                "containerPath": each.container_path,
                "options": ["ro" if each.read_only else "rw", *_MOUNT_OPTIONS],
            }
            for each in grant.mounts
        ],
    }
    return {name: each for name, each in edits.items() if each}

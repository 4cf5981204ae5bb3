"""What CDI devices change in the OCI specification of a container: variables, mounts, and hooks before its process.

Facts: cncf-tags/container-device-interface, pkg/cdi (container-edits.go: a variable replaces one of the same name;
cache.go: a later directory counts more, and the edits of a specification count with any of its devices).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.structs import Struct, field

Document = dict[str, Any]
"""A part of a specification, as JSON."""


class UnresolvableDeviceError(GpushareError):
    """No specification describes a CDI device, so the runtime does not create the container."""


class Edits(Struct):
    """The changes of all CDI devices of a container, as far as they matter here."""

    environment: dict[str, str] = field(default_factory=dict)
    """Variables by name."""
    mounts: list[Document] = field(default_factory=list)
    """The mounts, as CDI describes them: `hostPath`, `containerPath` and `options`."""
    hooks: list[Document] = field(default_factory=list)
    """The hooks that run on the host before the process of the container."""

    def add(self, edits: Document) -> None:
        """Add the edits of a device or of a specification."""
        for variable in edits.get("env") or ():
            name, _, value = variable.partition("=")
            self.environment[name] = value
        self.mounts += edits.get("mounts") or ()
        self.hooks += [hook for hook in edits.get("hooks") or () if hook["hookName"] == "createRuntime"]


def edits_of(devices: Iterable[str], directories: Sequence[Path]) -> Edits:
    """Return the edits of CDI devices, by their qualified names; raises UnresolvableDeviceError."""
    known = {f"{spec['kind']}={each['name']}": (spec, each) for spec in _specs(directories) for each in spec["devices"]}
    found, seen = Edits(), []
    for name in devices:
        if name not in known:
            raise UnresolvableDeviceError(f"CDI device injection failed: unresolvable CDI devices {name}")
        spec, device = known[name]
        if spec not in seen:
            found.add(spec.get("containerEdits") or {})
            seen.append(spec)
        found.add(device.get("containerEdits") or {})
    return found


def _specs(directories: Sequence[Path]) -> Iterator[Document]:
    for directory in directories:
        for file in sorted(directory.glob("*")):
            if file.suffix in {".json", ".yaml"}:
                text = file.read_text()
                yield json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)

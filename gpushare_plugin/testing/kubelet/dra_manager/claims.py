"""The claims that the kubelet prepares for its pods, and the file in which it remembers them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from gpushare_plugin.testing.kubelet.shared.errors import DraError

NAME = "dra_manager_state"
"""The file below the kubelet's root; its form is the embedded kubelet's own: a driver has nothing to read in it."""


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device as its driver prepared it; no `requests` stand for all requests of the claim."""

    pool: str
    device: str
    requests: tuple[str, ...]
    cdi_ids: tuple[str, ...]
    share_id: str | None


@dataclass(slots=True)
class ClaimInfo:
    """A claim, the pods that use it here, and by driver the devices that were prepared.

    `prepared` is not remembered over a restart of the kubelet, the devices are. So the devices of a claim that is
    prepared again then stand there twice (kubernetes: pkg/kubelet/cm/dra/claiminfo.go, addDevice).
    """

    namespace: str
    name: str
    uid: str
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[PreparedDevice]] = field(default_factory=dict)
    prepared: bool = False

    @classmethod
    def of(cls, claim: dict[str, Any]) -> Self:
        """Return what a ResourceClaim says; raises DraError where it is not allocated."""
        metadata, allocation = claim["metadata"], (claim.get("status") or {}).get("allocation")
        if allocation is None:
            raise DraError(f"ResourceClaim {metadata['name']}: not allocated")
        drivers = {each["driver"]: list[PreparedDevice]() for each in allocation["devices"].get("results") or ()}
        return cls(metadata["namespace"], metadata["name"], metadata["uid"], devices=drivers)

    def cdi_ids(self, request: str) -> Iterator[str]:
        """Yield the CDI devices of a request, all of them where it is empty."""
        for devices in self.devices.values():
            for device in devices:
                if not request or not device.requests or request in device.requests:
                    yield from device.cdi_ids


class ClaimCache:
    """All claims that the kubelet has prepared or tried to, by namespace and name."""

    def __init__(self, file: Path) -> None:
        """Take up what `file` remembers; an absent file is a node without a past."""
        self._file = file
        self._claims: dict[tuple[str, str], ClaimInfo] = {}
        if file.exists():
            for entry in json.loads(file.read_text()):
                info = _decoded(entry)
                self._claims[info.namespace, info.name] = info

    def get(self, namespace: str, name: str) -> ClaimInfo | None:
        """Return a claim, None where it is unknown."""
        return self._claims.get((namespace, name))

    def add(self, info: ClaimInfo) -> None:
        """Keep a claim."""
        self._claims[info.namespace, info.name] = info

    def delete(self, namespace: str, name: str) -> None:
        """Forget a claim."""
        self._claims.pop((namespace, name), None)

    def save(self) -> None:
        """Write the file, in one step."""
        unfinished = self._file.with_name(f".{self._file.name}")
        unfinished.write_text(json.dumps([_encoded(info) for info in self._claims.values()]))
        unfinished.replace(self._file)

    def __iter__(self) -> Iterator[ClaimInfo]:
        """Every claim there is."""
        return iter(list(self._claims.values()))


def _encoded(info: ClaimInfo) -> dict[str, Any]:
    devices = {
        driver: [[each.pool, each.device, each.requests, each.cdi_ids, each.share_id] for each in devices]
        for driver, devices in info.devices.items()
    }
    return {
        "namespace": info.namespace,
        "name": info.name,
        "uid": info.uid,
        "pods": sorted(info.pods),
        "devices": devices,
    }


def _decoded(entry: dict[str, Any]) -> ClaimInfo:
    devices = {
        driver: [
            PreparedDevice(pool, name, tuple(requests), tuple(ids), share) for pool, name, requests, ids, share in of
        ]
        for driver, of in entry["devices"].items()
    }
    return ClaimInfo(entry["namespace"], entry["name"], entry["uid"], set(entry["pods"]), devices)

"""What an API server accepts of devices, learned from its answers.

An API server refuses a whole ResourceSlice for one device that is not valid, and drops fields without a word whose
feature gate is off (kubernetes 1.36: pkg/apis/resource/validation, pkg/registry/resource/resourceslice/strategy.go). So
a refused device is left out until the device changes. A device that needs a dropped field is left out, too, and is
tried again at times.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus

from gpushare_plugin.base.backoff import Backoff
from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.device import Device
from gpushare_plugin.kube.client import ClusterError
from gpushare_plugin.kube.dra.devices import api_device
from gpushare_plugin.kube.dra.objects import ApiDevice, ApiResourceSliceSpec
from gpushare_plugin.kube.dra.pool import Feature, lost

FIRST_TRY_AGAIN, LAST_TRY_AGAIN = 60.0, 1800.0
"""Seconds until a dropped field is tried again: the first wait and the longest wait."""

_REFUSED_DEVICE = re.compile(r"spec\.devices\[(\d{1,4})\]")
_LONGEST_REASON = 500
"""Characters of the API server's words about a refused device that are told."""

_DROPPED: Mapping[Feature, str] = {
    "shares": (
        "the API server drops allowMultipleAllocations from devices, which would make each shared GPU a GPU for one "
        "claim: shared GPUs are not offered to claims; turn the feature gate DRAConsumableCapacity on, in API server "
        "and scheduler, as it is by default from Kubernetes 1.36 on"
    ),
    "taints": (
        "the API server drops the taints of devices: GPUs with a fault or a cordon are withdrawn from claims instead; "
        "turn the feature gate DRADeviceTaints on, as it is by default from Kubernetes 1.36 on"
    ),
}


class Acceptance:
    """What is known of one API server."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Expect that all is accepted; `clock` returns a monotonic time in seconds."""
        self._clock = clock
        # By name of the device.
        self._refused: dict[str, tuple[ApiDevice, str]] = {}
        self._dropped: set[Feature] = set()
        self._waits = Backoff(first=FIRST_TRY_AGAIN, most=LAST_TRY_AGAIN)
        self._again_at = 0.0

    def accepted(self, devices: Sequence[Device]) -> tuple[ApiDevice, ...]:
        """Return what can be offered of these devices, in their order."""
        if self._dropped and self._clock() >= self._again_at:
            self._dropped.clear()
        found = {each.name: each for each in map(api_device, devices)}
        self._refused = {name: each for name, each in self._refused.items() if found.get(name) == each[0]}
        return tuple(
            replace(each, taints=()) if "taints" in self._dropped else each
            for each in found.values()
            if each.name not in self._refused and not self._needs_dropped(each)
        )

    def learn_refusal(self, error: ClusterError, spec: ApiResourceSliceSpec) -> bool:
        """Return whether an error names devices of the refused spec, which are left out from now on."""
        if error.status != HTTPStatus.UNPROCESSABLE_ENTITY:
            return False
        numbers = {int(number) for number in _REFUSED_DEVICE.findall(str(error))}
        devices = [spec.devices[number] for number in numbers if number < len(spec.devices)]
        self._refused |= {each.name: (each, str(error)[:_LONGEST_REASON]) for each in devices}
        return bool(devices)

    def learn_kept(self, asked: ApiResourceSliceSpec, kept: ApiResourceSliceSpec) -> bool:
        """Return whether the API server kept what it was asked to write, and remember what it dropped."""
        dropped = lost(asked, kept)
        if dropped - self._dropped:
            self._again_at = self._clock() + self._waits.next()
        self._dropped |= dropped
        return not dropped

    def all_kept(self) -> None:
        """Take note that nothing was dropped: the next dropped field is tried again soon."""
        if not self._dropped:
            self._waits.reset()

    @property
    def trouble(self) -> tuple[str, ...]:
        """What is not offered, why, and what to do."""
        refused = (
            f"device {name} is not offered to claims, because the API server refuses it: {reason}; report this as a "
            "defect of gpushare"
            for name, (_, reason) in self._refused.items()
        )
        return (*(_DROPPED[each] for each in sorted(self._dropped)), *refused)

    def _needs_dropped(self, device: ApiDevice) -> bool:
        closed = any(each.effect != "None" for each in device.taints)
        return ("shares" in self._dropped and bool(device.allow_multiple_allocations)) or (
            "taints" in self._dropped and closed
        )

"""The side of `gpushare run` in the exchange with `gpushare mps`: publishes desired settings, tracks served GPUs."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping

import structlog

from gpushare_plugin.base.reported import Reported
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.namespaces import ContainerNamespace, MpsProtocol
from gpushare_plugin.gpus.exchange import AgentFiles, ExchangeError, read_message
from gpushare_plugin.mps.exchange import MpsGpu, MpsNamespace, MpsRoot, MpsSettings, MpsStatus, RememberedModes

_log = structlog.get_logger()

MADE_WITHIN = 5.0
"""Seconds to wait for the namespace of a container with units: the kubelet waits 30 s before the start of a container.

Source: `KubeletPreStartContainerRPCTimeoutInSecs` in k8s.io/kubelet, deviceplugin/v1beta1.
"""

MADE_FOR_CLAIM_WITHIN = 20.0
"""Seconds to wait for the namespaces of a claim, after the seconds for room: the kubelet waits 45 s for a claim.

A claim that is refused waits for about a minute until the kubelet asks again, and the way to a namespace is long: the
records of claims and the wanted settings are looked at every second, and MPS takes a program for each command.
Source: `defaultClientCallTimeout` in kubernetes, pkg/kubelet/cm/dra/plugin.
"""

_LOOK_EVERY = 0.1
"""Seconds between two looks at the status while a container waits for its namespace."""


class MpsView(Struct, frozen=True):
    """The difference between the desired settings and the served GPUs."""

    unserved: Mapping[str, str] = field(default_factory=dict)
    """The reason for every GPU not served as desired, by UUID."""
    lingering: frozenset[str] = frozenset()
    """The UUIDs of GPUs that are no longer desired, but still exclusive to MPS, whether MPS runs or not."""


class MpsLink:
    """Publishes the desired settings, and tracks the served GPUs while any GPU is desired or not yet released."""

    def __init__(self, root: MpsRoot, changed: Callable[[], None], every: float = 2.0) -> None:
        """Read the status every `every` seconds, and call `changed` after every change of `view`.

        Nothing is desired before the first call of `want`; until then, the settings of an earlier process count.
        """
        self._root = root
        self._files = AgentFiles(root, MpsStatus)
        self._changed = changed
        self._every = every
        self._wanted = MpsSettings()
        self._asked = asyncio.Event()
        self._changes = Reported()
        self.view = MpsView()
        """The difference found by the last read."""
        self.status = MpsStatus()
        """The status of `gpushare mps` by the last read; empty while `gpushare mps` does not run."""

    def wanted_before(self, protocol: MpsProtocol = 2) -> MpsSettings:
        """Return the last desired settings, even of an earlier process.

        A GPU not yet released by MPS was desired in any case. If the file does not list the GPU, the memory limit is
        unknown; if the file lists no GPU, the protocol is unknown and taken to be `protocol`.
        """
        written = self._written() or MpsSettings()
        others = sorted(self._exclusive() - written.uuids)
        before = {"gpus": (*written.gpus, *(MpsGpu(uuid=uuid) for uuid in others))}
        return written.model_copy(update=before if written.gpus else {**before, "protocol": protocol})

    def want(self, settings: MpsSettings) -> None:
        """Set the desired GPUs and limits; `view` lists at once the GPUs not yet served as desired.

        After a failed write, `watch` tries again later; meanwhile `view` has the reason.
        """
        self._wanted = settings
        self._asked.set()
        self._write()
        self.view = self._look()

    async def watch(self) -> None:
        """Keep `view` up to date until cancelled; read no files while no GPU is desired or waits to be released."""
        while True:
            await self._asked.wait()
            await asyncio.sleep(self._every)
            self._write()
            view = self._look()
            if not self._wanted.gpus and not view.lingering and self._files.trouble is None:
                self._asked.clear()
            if view != self.view:
                self.view = view
                self._changed()

    async def until_made(self, namespaces: Iterable[ContainerNamespace], within: float = MADE_FOR_CLAIM_WITHIN) -> str:
        """Wait until namespaces are desired, and in effect with their limits, at most `within` seconds in all.

        Another daemon of the node may desire the namespaces. Returns why one of `namespaces` is not in effect, empty
        when all are.
        """
        wanted = [MpsNamespace.of(each) for each in namespaces]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._why_missing(wanted):  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(_LOOK_EVERY)
        return self._why_missing(wanted)

    def _why_missing(self, namespaces: Iterable[MpsNamespace]) -> str:
        status, trouble = self._status()
        desired = self._written() or MpsSettings()
        for each in namespaces:
            if reason := trouble or status.why_missing(each, desired):
                return f"the MPS namespace {each.name} does not exist with its limits: {reason}"
        return ""

    def _write(self) -> None:
        """Write the desired settings unless already written; a node that never had MPS gets no file."""
        try:
            if self._files.trouble is not None or self._written() != self._wanted:
                self._files.write(self._wanted)
        except ExchangeError as error:
            _log.error("mps_desired_not_written", reason=str(error))

    def _written(self) -> MpsSettings | None:
        try:
            return read_message(self._root.wanted, MpsSettings) or MpsSettings()
        except ExchangeError as error:
            self._complain("wanted", str(error))
            return None

    def _look(self) -> MpsView:
        status, trouble = self._status()
        unserved = {gpu.uuid: trouble or status.why_not(gpu, self._wanted) for gpu in self._wanted.gpus}
        return MpsView(
            unserved={uuid: reason for uuid, reason in unserved.items() if reason is not None},
            lingering=(status.in_force.uuids | self._exclusive()) - self._wanted.uuids,
        )

    def _status(self) -> tuple[MpsStatus, str | None]:
        """Return the status of `gpushare mps`, and why nothing is served, whatever the status; None without trouble."""
        seen = self._files.look()
        self.status = seen.status or MpsStatus()
        return self.status, seen.trouble

    def _exclusive(self) -> frozenset[str]:
        """Return the GPUs whose compute mode is still to be restored."""
        try:
            remembered = read_message(self._root.modes, RememberedModes)
        except ExchangeError as error:
            self._complain("modes", str(error))
            return frozenset()
        return frozenset(remembered.modes) if remembered else frozenset()

    def _complain(self, file: str, reason: str) -> None:
        if self._changes.is_new(file, reason):
            _log.warning("mps_file_unreadable", reason=reason)

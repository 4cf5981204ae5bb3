"""Compute modes of GPUs under MPS: EXCLUSIVE_PROCESS under MPS, the previous mode afterwards, also after a crash."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import structlog

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.gpus.compute_modes import ComputeMode, ComputeModes
from gpushare_plugin.gpus.exchange import ExchangeError, read_message, write_message
from gpushare_plugin.mps.exchange import RememberedModes

_log = structlog.get_logger()


class ExclusiveModes:
    """Makes GPUs exclusive to the MPS server, and keeps the previous compute modes in a file."""

    def __init__(self, modes: ComputeModes, file: Path) -> None:
        """Keep the previous compute modes in `file`.

        If the file cannot be read, the previous mode of a GPU found in EXCLUSIVE_PROCESS is taken to be DEFAULT.
        """
        self._modes = modes
        self._file = file
        self._unknown = ComputeMode.EXCLUSIVE_PROCESS
        self._before: dict[str, int] = {}
        self._complaints: dict[str, str] = {}
        try:
            remembered = read_message(file, RememberedModes)
        except ExchangeError as error:
            _log.error("compute_modes_lost", reason=str(error))
            self._unknown = ComputeMode.DEFAULT
        else:
            self._before = dict(remembered.modes) if remembered else {}

    async def claim(self, uuids: Iterable[str]) -> dict[str, str]:
        """Make the GPUs `uuids` exclusive; return the GPUs that could not be made exclusive, with the reason."""
        refused = {uuid: reason for uuid in uuids if (reason := await self._try(uuid, self._make_exclusive))}
        return {uuid: f"its compute mode must be EXCLUSIVE_PROCESS: {reason}" for uuid, reason in refused.items()}

    async def release(self, keep: Collection[str]) -> None:
        """Restore the previous mode of every GPU outside `keep`; after a failure, the next call tries the GPU again."""
        for uuid in [each for each in self._before if each not in keep]:
            reason = await self._try(uuid, self._put_back)
            if reason is not None and reason != self._complaints.get(uuid):
                _log.warning("compute_mode_not_restored", uuid=uuid, reason=reason)
                self._complaints[uuid] = reason

    async def _try(self, uuid: str, work: Callable[[str], None]) -> str | None:
        try:
            await asyncio.to_thread(work, uuid)
        except GpushareError as error:
            return str(error)
        return None

    def _make_exclusive(self, uuid: str) -> None:
        mode = self._modes.read(uuid)
        if uuid not in self._before:
            # Store the previous mode before the change: a crash in between must not lose the previous mode.
            self._remember(self._before | {uuid: self._unknown if mode is ComputeMode.EXCLUSIVE_PROCESS else mode})
        if mode is ComputeMode.EXCLUSIVE_PROCESS:
            return
        self._modes.set(uuid, ComputeMode.EXCLUSIVE_PROCESS)
        _log.info("compute_mode_set", uuid=uuid, mode=ComputeMode.EXCLUSIVE_PROCESS.name, before=mode.name)

    def _put_back(self, uuid: str) -> None:
        mode = ComputeMode(self._before[uuid])
        if self._modes.read(uuid) is not mode:
            self._modes.set(uuid, mode)
            _log.info("compute_mode_restored", uuid=uuid, mode=mode.name)
        self._remember({other: before for other, before in self._before.items() if other != uuid})
        self._complaints.pop(uuid, None)

    def _remember(self, before: dict[str, int]) -> None:
        if before:
            write_message(self._file, RememberedModes(modes=before))
        else:
            self._file.unlink(missing_ok=True)
        self._before = before

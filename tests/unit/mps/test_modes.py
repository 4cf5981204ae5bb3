"""Tests of `gpushare_plugin.mps.modes` and of the simulated modes."""

from pathlib import Path

import pytest

from gpushare_plugin.gpus.compute_modes import ComputeMode, ComputeModeError, SimulatedComputeModes
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.gpus.simulated import SimulatedSource
from gpushare_plugin.mps.exchange import MpsRoot, RememberedModes
from gpushare_plugin.mps.modes import ExclusiveModes
from tests.unit.mps.roots import UUIDS
from tests.unit.mps.supervised import Modes


async def test_modes_from_before_are_put_back(root: MpsRoot) -> None:
    """Whatever a GPU was, it is again, also if another process puts it back; then nothing is left to remember."""
    modes = Modes()
    modes.modes[UUIDS[1]] = ComputeMode.PROHIBITED
    assert await ExclusiveModes(modes, root.modes).claim(UUIDS[:2]) == {}
    assert modes.exclusive == list(UUIDS[:2])
    await ExclusiveModes(modes, root.modes).release(keep=[UUIDS[0]])
    assert modes.exclusive == [UUIDS[0]]
    assert modes.modes[UUIDS[1]] is ComputeMode.PROHIBITED
    await ExclusiveModes(modes, root.modes).release(keep=())
    assert modes.modes[UUIDS[0]] is ComputeMode.DEFAULT
    assert not root.modes.exists()


async def test_a_crash_between_two_steps_loses_no_mode(root: MpsRoot) -> None:
    """A mode is remembered before it is changed."""

    class Killed(Modes):
        """Modes that see what a process that dies at the change has left."""

        def set(self, uuid: str, mode: ComputeMode) -> None:
            """Keep what is remembered so far."""
            left.append(read_message(root.modes, RememberedModes))
            super().set(uuid, mode)

    left: list[RememberedModes | None] = []
    await ExclusiveModes(Killed(), root.modes).claim(UUIDS[:1])
    assert left == [RememberedModes(modes={UUIDS[0]: ComputeMode.DEFAULT})]


async def test_a_gpu_that_does_not_answer_is_put_back_later(root: MpsRoot) -> None:
    """One that cannot be put back now is not forgotten, and keeps no other from it."""
    modes = Modes()
    exclusive = ExclusiveModes(modes, root.modes)
    await exclusive.claim(UUIDS[:2])
    modes.refusals[UUIDS[0]] = "GPU is lost"
    for _ in range(2):
        await exclusive.release(keep=())
        assert modes.exclusive == [UUIDS[0]]
    modes.refusals.clear()
    await exclusive.release(keep=())
    assert modes.exclusive == []


async def test_a_mode_that_cannot_be_remembered_is_not_changed(root: MpsRoot) -> None:
    """A full or closed directory is a reason not to serve."""
    root.modes.mkdir()
    modes = Modes()
    refused = await ExclusiveModes(modes, root.modes).claim(UUIDS[:1])
    assert "modes.json cannot be written" in refused[UUIDS[0]]
    assert modes.exclusive == []


def test_modes_of_simulated_gpus_are_remembered(short_path: Path) -> None:
    """Other GPUs have no modes there."""
    file = short_path / "gpus.yaml"
    file.write_text("gpus: [{memory: 16GiB}]\n")
    (gpu,) = SimulatedSource(file).read().cards
    modes = SimulatedComputeModes(file)
    assert modes.read(gpu.uuid) is ComputeMode.DEFAULT
    modes.set(gpu.uuid, ComputeMode.EXCLUSIVE_PROCESS)
    assert modes.read(gpu.uuid) is ComputeMode.EXCLUSIVE_PROCESS
    with pytest.raises(ComputeModeError, match=UUIDS[1]):
        modes.set(UUIDS[1], ComputeMode.DEFAULT)

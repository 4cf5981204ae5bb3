"""Discovery: what gpushare says of the GPUs against what `nvidia-smi` says."""

import asyncio
import csv
import io
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping

from gpushare_plugin.observe.node.report import GpuReport
from real_gpus.findings import Finding, check, equal, measured, skipped
from real_gpus.node import node
from real_gpus.steps import MEMORY, MIB_PER_UNIT, WHOLE, Subject, shares_memory

_FIELDS = (
    "index",
    "uuid",
    "name",
    "pci.bus_id",
    "compute_cap",
    "memory.total",
    "memory.reserved",
    "mig.mode.current",
    "driver_version",
)
_AS_SHOWN, _NOT_SHOWN = "as nvidia-smi shows it", "[N/A]"
_AT_REST = 20.0
"""Seconds in which the daemon at rest is watched."""


async def discovery(subject: Subject) -> AsyncIterator[Finding]:
    """Compare every GPU field by field."""
    if (program := shutil.which("nvidia-smi")) is None:
        yield skipped("every GPU as nvidia-smi shows the GPU", "there is no nvidia-smi")
        return
    process = await asyncio.create_subprocess_exec(
        *(program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    rows = list(csv.reader(io.StringIO(said.decode()), skipinitialspace=True))
    if process.returncode or any(len(row) != len(_FIELDS) for row in rows):
        yield skipped("every GPU as nvidia-smi shows the GPU", f"nvidia-smi says: {said.decode().strip()}")
        return
    yield equal("number of GPUs", len(rows), len(subject.gpus))
    yield equal("version of the driver", ", ".join(sorted({row[-1] for row in rows})), subject.machine.driver)
    for row, gpu in zip(rows, subject.gpus, strict=False):
        shown = dict(zip(_FIELDS, row, strict=True))
        for finding in _compared(shown, gpu):
            yield finding


def _compared(shown: Mapping[str, str], gpu: GpuReport) -> Iterator[Finding]:
    """Yield for each field whether gpushare says what nvidia-smi shows."""
    name = f"GPU {gpu.label}"
    yield equal(f"{name}: number", int(shown["index"]), gpu.index)
    same = gpu.uuid == shown["uuid"]
    yield check(f"{name}: UUID", expected=_AS_SHOWN, found=_AS_SHOWN if same else gpu.uuid, holds=same)
    yield equal(f"{name}: name", shown["name"], gpu.name)
    yield equal(f"{name}: PCI address", shown["pci.bus_id"], gpu.pci_bus_id)
    yield equal(f"{name}: compute capability", shown["compute_cap"], gpu.compute_capability)
    amounts = shown["memory.total"], shown["memory.reserved"]
    statement = f"{name}: usable memory, all but what the driver reserves"
    if _NOT_SHOWN in amounts or gpu.memory_mib is None:
        yield skipped(statement, "nvidia-smi does not show it")
    else:
        usable = int(amounts[0]) - int(amounts[1])
        # nvidia-smi rounds each amount by itself.
        holds = abs(usable - gpu.memory_mib) <= 1
        yield check(statement, expected=f"{usable} MiB, within 1 MiB", found=f"{gpu.memory_mib} MiB", holds=holds)
    yield equal(f"{name}: MIG mode is on", shown["mig.mode.current"] == "Enabled", gpu.mig_enabled)


async def units(subject: Subject) -> AsyncIterator[Finding]:
    """Let the daemon register without a config: all GPUs by memory in GiB."""
    shared = [gpu.memory_mib for gpu in subject.gpus if shares_memory(gpu) and gpu.memory_mib]
    units = {MEMORY: sum(memory // MIB_PER_UNIT for memory in shared)}
    if whole := len(subject.gpus) - len(shared):
        units[WHOLE] = whole
    async with node(subject.machine, None, units) as made:
        yield measured("units that the kubelet can allocate without a config", _in_words(made.kubelet.allocatable()))
        yield measured("seconds from the start of the daemon until then", f"{made.ready_after:.2f}")
        before = sum(made.daemon.cpu_times()[:2])
        await asyncio.sleep(_AT_REST)
        used = sum(made.daemon.cpu_times()[:2]) - before
        yield measured("processor time of the daemon, no pod runs", f"{used / _AT_REST:.2%} of a core")
        yield measured("memory of the daemon, MiB", made.daemon.memory_info().rss >> 20)
        resources = sorted(registration.resource for registration in made.kubelet.registrations)
        expected = ", ".join(sorted(units))
        yield equal("resources that the daemon registers without a config", expected, ", ".join(resources))


def _in_words(units: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {name}" for name, count in units.items())

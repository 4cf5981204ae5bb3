"""Discovery: what gpushare says of the GPUs against what `nvidia-smi` says."""

import asyncio
import csv
import io
import shutil
from collections.abc import AsyncIterator, Mapping

from gpushare_plugin.observe.node.report import GpuReport
from real_gpus.findings import Finding, check, equal, measured, skipped
from real_gpus.node import node
from real_gpus.steps import MEMORY, MIB_PER_UNIT, Subject

_FIELDS = ("index", "uuid", "name", "pci.bus_id", "compute_cap", "memory.total", "memory.reserved", "mig.mode.current")
_AT_REST = 20.0


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
    yield equal("number of GPUs", len(rows), len(subject.gpus))
    for row, gpu in zip(rows, subject.gpus, strict=False):
        shown = dict(zip(_FIELDS, row, strict=True))
        for field, expected, found in _compared(shown, gpu):
            shown_as = "as nvidia-smi shows it" if field == "UUID" and expected == found else found
            yield check(
                f"GPU {gpu.label}: {field}", expected="as nvidia-smi shows it", found=shown_as, holds=expected == found
            )


def _compared(shown: Mapping[str, str], gpu: GpuReport) -> list[tuple[str, object, object]]:
    usable = int(shown["memory.total"]) - int(shown["memory.reserved"])
    return [
        ("number", int(shown["index"]), gpu.index),
        ("UUID", shown["uuid"], gpu.uuid),
        ("name", shown["name"], gpu.name),
        ("PCI address", shown["pci.bus_id"], gpu.pci_bus_id),
        ("compute capability", shown["compute_cap"], gpu.compute_capability),
        ("usable memory, MiB: all but what the driver reserves", usable, gpu.memory_mib),
        ("MIG mode", shown["mig.mode.current"] == "Enabled", gpu.mig_enabled),
    ]


async def units(subject: Subject) -> AsyncIterator[Finding]:
    """Let the daemon register without a config: all GPUs by memory in GiB."""
    expected = sum(gpu.memory_mib // MIB_PER_UNIT for gpu in subject.gpus if not gpu.mig_enabled)
    async with node(
        subject.machine, {"memory": {"resources": [{"name": MEMORY}]}}, {MEMORY: expected}, health={}
    ) as made:
        yield equal(f"units of {MEMORY} that the kubelet can allocate", expected, made.kubelet.allocatable()[MEMORY])
        yield measured("seconds from the start of the daemon until then", f"{made.ready_after:.2f}")
        if made.daemon is not None:
            before = sum(made.daemon.cpu_times()[:2])
            await asyncio.sleep(_AT_REST)
            used = sum(made.daemon.cpu_times()[:2]) - before
            yield measured("processor time of the daemon, no pod runs", f"{used / _AT_REST:.2%} of a core")
            yield measured("memory of the daemon, MiB", made.daemon.memory_info().rss >> 20)
        resources = ", ".join(registration.resource for registration in made.kubelet.registrations)
        yield equal("resources that the daemon registers without a config", MEMORY, resources)

"""Examines described nodes, with GPUs as NVML would show them."""

from collections.abc import Sequence
from pathlib import Path

import pynvml

from gpushare_plugin.base.errors import DriverChangedError, NoGpuLibraryError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.doctor.examination import DoctorReport, Facts, judged, read_node
from gpushare_plugin.doctor.node.diagnosis import Diagnosis
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import ConfigNeeds, EntryNeeds
from gpushare_plugin.gpus.nvml.initialisation import refuse_mismatch
from gpushare_plugin.testing.hosts import DRIVER, HostDescription, built
from tests.hosts import two_gpus
from tests.nodes import Cards

ENVVAR = ConfigNeeds()
"""A config that says nothing of how containers get their GPUs."""
MPS = ConfigNeeds(entries=(EntryNeeds(("mps",)),))
"""A config that shares GPUs by MPS."""
CDI = ConfigNeeds(strategies=("cdi-cri",), cdi=True)
"""A config that gives GPUs by CDI."""


def shown(driver: str = DRIVER) -> Cards:
    """Return the GPUs of the described nodes as NVML of a driver shows them."""
    return Cards(replace(two_gpus(), driver_version=driver))


def hidden() -> Cards:
    """Return NVML in a pod without the device nodes of the GPUs."""
    source = shown()
    source.trouble = NoGpuLibraryError("NVML cannot be used: Driver Not Loaded")
    return source


def answering(host: HostDescription) -> Cards:
    """Return NVML of a node, which refuses to work where the kernel runs another driver than that of the library."""
    running = host.files.get("/sys/module/nvidia/version", DRIVER).strip()
    source = shown(running)
    if not any(library.endswith(running) for library in host.nvml):
        try:
            refuse_mismatch(pynvml.NVMLError_LibRmVersionMismatch())
        except DriverChangedError as error:
            source.trouble = error
    return source


def examined(
    host: HostDescription,
    folder: Path,
    needs: ConfigNeeds = ENVVAR,
    source: Cards | None = None,
    misfits: Sequence[str] = (),
) -> tuple[Facts, DoctorReport]:
    """Return what is read of a node that is built below `folder`, and the judgement of that.

    `misfits` is what of the config does not fit the GPUs.
    """
    with built(host, folder):
        root = HostRoot(folder)
        facts = read_node(root, needs, lambda _library: source or answering(host), lambda _inventory: misfits)
        return facts, judged(facts, root)


def wrong_lines(report: DoctorReport) -> list[Diagnosis]:
    """Return the lines that are wrong."""
    return [line for line in report.lines if line.judgement == "wrong"]


def found(report: DoctorReport, subject: str) -> str:
    """Return what was found of a part, of which there is one line."""
    (line,) = [line for line in report.lines if line.subject == subject]
    return line.found

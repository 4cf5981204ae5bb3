"""What `gpushare doctor` says of this machine, compared with what the other steps see of it."""

import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from gpushare_plugin.doctor.bundle import Redaction
from gpushare_plugin.doctor.examination import DoctorReport
from gpushare_plugin.doctor.node.diagnosis import Diagnosis
from gpushare_plugin.doctor.subjects import cgroups, driver, mps, nvml
from real_gpus.findings import Finding, check, measured, skipped
from real_gpus.node import gpushare
from real_gpus.steps import Subject, no_mps

_NOTHING_WRONG, _A_PART_IS_WRONG = 0, 3
_WORDS = {"right": "right", "wrong": "wrong", "notLookedAt": "not looked at"}
_CGROUPS = 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1
"""The version of the control groups."""


async def doctor(subject: Subject) -> AsyncIterator[Finding]:
    """Run `gpushare doctor` while a node runs: with MPS where this machine can have MPS."""
    with_mps = no_mps(subject) is None
    async with subject.by_memory("mps" if with_mps else "none") as made:
        sockets = ("--pod-resources-socket", made.folder / "pod-resources" / "kubelet.sock")
        status, printed = await gpushare("doctor", "--root", "/", "--config-file", made.config, *sockets, "-o", "json")
    ends = status in {_NOTHING_WRONG, _A_PART_IS_WRONG}
    yield check("the exit status of gpushare doctor", expected="0 or 3", found=status, holds=ends)
    if not ends:
        yield measured("what gpushare doctor prints", Redaction((socket.gethostname(),))(printed[-500:].strip()))
        return
    seen = {
        driver.KERNEL_MODULE: subject.machine.driver,
        nvml.SUBJECT: f"driver {subject.machine.driver}; GPUs: ",
        cgroups.SUBJECT: f"version {_CGROUPS}",
        **({mps.SUBJECT: "gpushare mps serves in "} if with_mps else {}),
    }
    for finding in compared(msgspec.json.decode(printed, type=DoctorReport), seen):
        yield finding


def compared(report: DoctorReport, seen: Mapping[str, str]) -> Iterator[Finding]:
    """Yield every line, without names, and whether it is right about the parts that other steps have `seen`.

    `seen` has the beginning of what a right line says, by the part of the node.
    """
    redacted = Redaction((socket.gethostname(),))
    for line in report.lines:
        yield measured(line.subject, redacted(f"{_WORDS[line.judgement]}: {line.found}"))
    for subject, begins in seen.items():
        yield _agreeing(subject, begins, [line for line in report.lines if line.subject == subject])


def _agreeing(subject: str, begins: str, lines: Sequence[Diagnosis]) -> Finding:
    statement = f"{subject}: doctor says what the other steps see"
    found = ", ".join(_WORDS[line.judgement] for line in lines) or "no line"
    if any(line.judgement == "notLookedAt" for line in lines):
        return skipped(statement, found)
    holds = any(line.found.startswith(begins) for line in lines) and all(line.judgement == "right" for line in lines)
    return check(statement, expected=f"right: {begins}…", found=found, holds=holds)

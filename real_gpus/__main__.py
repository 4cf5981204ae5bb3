"""`make gpu`: runs the steps on this machine and writes the report; exits with 1 where a statement does not hold."""

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from gpushare_plugin.observe.node.report import NodeReport, decode
from real_gpus.containers import Cgroups
from real_gpus.findings import Finding, StepReport, Verdict, check, skipped
from real_gpus.node import Machine
from real_gpus.report import written
from real_gpus.steps import (
    Step,
    Subject,
    claims,
    discovery,
    doctor,
    driver_limits,
    effects,
    isolation_lists,
    mps,
    namespaces,
    no_cuda,
    no_mps,
    no_mps_usage,
    no_mps_users,
    no_namespaces,
    no_namespaces_for_users,
    no_usage,
    shared,
    shares_memory,
    traces,
)

STEPS: Mapping[str, Step] = {
    "discovery": Step("GPUs as nvidia-smi shows them", discovery.discovery),
    "units": Step("Units without a config", discovery.units),
    "doctor": Step("gpushare doctor", doctor.doctor),
    "isolation-lists": Step(
        "Lists of isolations on a driver without driver limits", isolation_lists.look, isolation_lists.has_limits
    ),
    "memory": Step("Memory without isolation", shared.memory, no_cuda),
    "usage": Step("Who uses how much", shared.usage, no_usage),
    "turns": Step("Time slicing", shared.turns, no_cuda),
    "fault": Step("A fault without isolation", shared.fault, no_cuda),
    "mps-limits": Step("MPS: memory and compute of each container", mps.limits, no_mps),
    "mps-slices": Step("MPS: slices", mps.slices, no_mps),
    "mps-replicas": Step("MPS: replicas", mps.replicas, no_mps),
    "mps-escapes": Step("MPS: what programs can do about their limits", mps.escapes, no_mps),
    "mps-effects": Step("MPS: what the daemon says of limits", effects.limits, effects.no_effects),
    "mps-replicas-effects": Step(
        "MPS: what the daemon says of limits of replicas", effects.replicas, effects.no_effects
    ),
    "mps-usage": Step("MPS: who uses how much", mps.usage, no_mps_usage),
    "mps-users": Step("MPS: programs of two users", mps.users, no_mps_users),
    "mps-fault": Step("MPS: a fault", mps.fault, no_mps),
    "mps-kill": Step("MPS: a kill", mps.kill, no_mps),
    "mps-restart": Step("MPS: the end of gpushare mps", mps.restart, no_mps),
    "claims-mps": Step("Claims: shares under MPS", claims.mps, no_mps),
    "claims-effects": Step("Claims: what the daemon says of limits", claims.effects, effects.no_effects),
    "claims-whole": Step("Claims: a whole GPU", claims.whole, no_cuda),
    "claims-hand-over": Step("Claims: a GPU between units and claims", claims.hand_over, no_cuda),
    "namespaces": Step("MPS by protocol 3: memory and compute of each container", namespaces.limits, no_namespaces),
    "namespaces-escapes": Step("MPS by protocol 3: what programs can do", namespaces.escapes, no_namespaces),
    "namespaces-users": Step("MPS by protocol 3: programs of two users", namespaces.users, no_namespaces_for_users),
    "driver-limits": Step("Driver limits: the library", driver_limits.library),
    "driver-limits-memory": Step("Driver limits: memory of a cgroup", driver_limits.memory, driver_limits.no_limits),
    "driver-limits-processes": Step(
        "Driver limits: several programs", driver_limits.processes, driver_limits.no_limits
    ),
    "driver-limits-uncounted": Step(
        "Driver limits: managed and imported memory", driver_limits.uncounted, driver_limits.no_limits
    ),
    "driver-limits-above": Step("Driver limits: the cgroup of a pod", driver_limits.above, driver_limits.no_limits),
    "driver-limits-escapes": Step(
        "Driver limits: what programs can do", driver_limits.escapes, driver_limits.no_limits
    ),
    "driver-limits-hook": Step("Driver limits: NVIDIA's hook", driver_limits.hook, driver_limits.no_limits_by_hook),
    "driver-limits-mps": Step(
        "Driver limits: a client of MPS", driver_limits.under_mps, driver_limits.no_limits_under_mps
    ),
}
"""The steps in the order in which they run."""

_STEP_WITHIN = 180.0
"""Seconds for one step."""
_WITHOUT_DRIVER = "NVML cannot be used: "
"""What `gpushare list` says on a machine where NVML cannot begin, before the reason."""


@click.command()
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="The file for the report.")
@click.option("--only", multiple=True, type=click.Choice(list(STEPS)), help="Run only this step; can be repeated.")
@click.option(
    "--may-change",
    is_flag=True,
    help="Set the compute mode of GPUs under MPS to EXCLUSIVE_PROCESS and back, as `gpushare mps` does.",
)
def main(report: Path | None, only: Sequence[str], *, may_change: bool) -> None:
    """Show on the GPUs of this machine what gpushare does there, without Kubernetes."""
    node = _listed()
    cards = tuple(gpu for gpu in node.gpus if gpu.mig is None)
    if not cards:
        raise click.ClickException("this machine has no GPU: see `gpushare list`")
    if not any(map(shares_memory, cards)):
        raise click.ClickException(
            "every GPU of this machine is in MIG mode, or does not report its memory: the steps need one that can be "
            "shared by memory"
        )
    uuids = [gpu.uuid for gpu in cards]
    before = traces.state(uuids)
    busy = [gpu.label for gpu, trace in zip(cards, before, strict=True) if traces.is_used(trace)]
    if busy:
        gpus = ", ".join(busy)
        raise click.ClickException(
            f"programs compute on GPU {gpus}: the steps take the memory of the GPU and can end the programs; end the "
            "programs first"
        )
    _end_in_order()
    steps: list[StepReport] = []
    cgroups = Cgroups()
    try:
        with cgroups:
            subject = Subject(Machine(uuids, cgroups, node.driver_version, may_change), cards)
            for name in only or STEPS:
                asyncio.run(_run(STEPS[name], subject, steps))
    finally:
        left = [*traces.compared(before, traces.state(uuids)), traces.cgroups_left(cgroups)]
        steps.append(_shown(StepReport("What is left behind", left, 0)))
        if report is not None:
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(written(node, steps, may_change=may_change))
    if any(finding.verdict is Verdict.FAILS for step in steps for finding in step.findings):
        sys.exit(1)


def _end_in_order() -> None:
    """Let SIGTERM and SIGHUP end this program as Ctrl-C does: the daemons end first, and what was found is written."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


def _listed() -> NodeReport:
    """Return what `gpushare list` shows of a machine without a kubelet."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpushare_plugin", "list", "--output", "json"]
        nowhere = ["--device-plugin-path", folder, "--pod-resources-socket", f"{folder}/none"]
        listed = subprocess.run([*command, *nowhere], capture_output=True, check=False)  # noqa: S603 - our own program
    if not listed.stdout:
        reason = listed.stderr.decode().strip().rpartition("\n")[2]
        if _WITHOUT_DRIVER in reason:
            cause = reason.partition(_WITHOUT_DRIVER)[2].partition(". ")[0]
            raise click.ClickException(
                f"nothing to report: NVIDIA's driver is not on this machine, or does not run ({cause}). Run this where "
                "nvidia-smi shows a GPU"
            )
        raise click.ClickException(f"the GPUs of this machine cannot be listed: {reason}")
    return decode(listed.stdout)


async def _run(step: Step, subject: Subject, reports: list[StepReport]) -> None:
    """Run one step and append the report; an error ends the step alone, and is a finding."""
    began = time.monotonic()
    findings: list[Finding] = []
    try:
        if (reason := step.lacks(subject)) is not None:
            findings.append(skipped("the whole step", reason))
            return
        async with asyncio.timeout(_STEP_WITHIN):
            async for finding in step.look(subject):
                findings += [finding]
    except asyncio.CancelledError:
        findings.append(check("the step ends", expected="by itself", found="interrupted", holds=False))
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other steps run
        reason = "".join(traceback.format_exception_only(error)).strip()
        traceback.print_exc()
        findings.append(check("the step ends", expected="without an error", found=reason, holds=False))
    finally:
        reports.append(_shown(StepReport(step.title, findings, time.monotonic() - began)))


def _shown(step: StepReport) -> StepReport:
    """Print what a step found; return it."""
    click.echo(f"\n{step.title} ({step.seconds:.0f} s)")
    for finding in step.findings:
        expected = f", expected {finding.expected}" if finding.verdict is Verdict.FAILS else ""
        click.echo(f"  {finding.verdict}: {finding.statement}: {finding.found}{expected}")
    return step


if __name__ == "__main__":
    main()

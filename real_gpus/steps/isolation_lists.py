"""What a node with a driver without driver limits makes of configs that name `driver` as isolation."""

import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Any

from gpushare_plugin.core.driver_limits import has_driver_limits
from real_gpus.findings import Finding, check, equal, skipped
from real_gpus.node import gpushare
from real_gpus.steps import Isolation, Subject, no_mps

_DRIVER, _OTHERS = "driver", ("none", "mps")


def has_limits(subject: Subject) -> str | None:
    """Return that the driver has driver limits, which other steps look at; None for an older driver."""
    found = subject.machine.driver
    return f"driver {found} has driver limits, which other steps look at" if has_driver_limits(found) else None


async def look(subject: Subject) -> AsyncIterator[Finding]:
    """Check a config with `driver` alone, and check and run configs with another isolation after `driver`."""
    status, verdict = await _checked(subject, (_DRIVER,))
    mistakes = [each["message"] for each in verdict["mistakes"]]
    yield equal("check-config, isolation driver alone: exit status", 1, status)
    yield _named(subject, "check-config, isolation driver alone: why not", mistakes)
    for other in _OTHERS:
        async for finding in _either(subject, other):
            yield finding


async def _either(subject: Subject, other: str) -> AsyncIterator[Finding]:
    """Let `check-config` and `run` choose between `driver` and another isolation."""
    isolation, label = (_DRIVER, other), subject.gpu.label
    _, verdict = await _checked(subject, isolation)
    chosen = (verdict["isolations"] or {}).get(label, {})
    yield equal(f"check-config, isolation [driver, {other}]: chosen", other, chosen.get("name"))
    yield _named(subject, f"check-config, isolation [driver, {other}]: why not driver", chosen.get("passedOver", ()))
    if other == "mps" and (reason := no_mps(subject)) is not None:
        yield skipped(f"run, isolation [driver, {other}]", reason)
        return
    async with subject.by_memory(isolation) as made:
        report = made.report()
    gpu = next((each for each in report.gpus if each.uuid == subject.gpu.uuid), None) if report else None
    yield equal(f"run, isolation [driver, {other}]: chosen", other, gpu and gpu.isolation)
    reasons = gpu.isolation_reasons if gpu else ()
    yield _named(subject, f"run, isolation [driver, {other}]: why not driver", reasons)


def _named(subject: Subject, statement: str, reasons: Sequence[str]) -> Finding:
    """Return the finding of reasons, which are expected to name the version of the driver."""
    found = f"driver {subject.machine.driver} limits no memory"
    holds = any(found in each for each in reasons)
    return check(statement, expected=f"… {found} …", found="; ".join(reasons) or "nothing", holds=holds)


async def _checked(subject: Subject, isolation: Isolation) -> tuple[int, Any]:
    """Return the exit status of `gpushare check-config` and the verdict on a config with this isolation."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        json.dump({"version": "v1", "sharing": subject.sharing_by_memory(isolation)}, config)
        config.flush()
        status, printed = await gpushare("check-config", config.name, "-o", "json")
    (verdict,) = json.loads(printed)["configs"]
    return status, verdict

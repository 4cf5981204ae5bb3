"""What a step found: one statement at a time, and whether the statement holds on this machine."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Verdict(StrEnum):
    """Whether a statement of gpushare holds on this machine."""

    HOLDS = "holds"
    """The found value is as expected."""
    FAILS = "DOES NOT HOLD"
    """The found value is not as expected: a defect of gpushare, or a false statement of the documentation."""
    MEASURED = "measured"
    """gpushare says nothing about the value."""
    SKIPPED = "skipped"
    """This machine lacks what the statement is about."""


class Finding(NamedTuple):
    """One statement about this machine."""

    statement: str
    """What is looked at."""
    expected: str
    """What gpushare says of it; empty where gpushare says nothing."""
    found: str
    """What the machine showed, with units; the reason of a statement that was skipped."""
    verdict: Verdict
    """Whether the statement holds."""


class StepReport(NamedTuple):
    """What one step found."""

    title: str
    """What the step is about."""
    findings: Sequence[Finding]
    """All statements of the step, in the order in which they were looked at."""
    seconds: float
    """How long the step took."""


def check(statement: str, *, expected: object, found: object, holds: bool) -> Finding:
    """Return the finding of a statement that `holds` or not."""
    return Finding(statement, str(expected), str(found), Verdict.HOLDS if holds else Verdict.FAILS)


def equal(statement: str, expected: object, found: object) -> Finding:
    """Return the finding of a statement that holds if `found` equals `expected`."""
    return check(statement, expected=expected, found=found, holds=expected == found)


def between(statement: str, least: float, found: float, most: float, unit: str) -> Finding:
    """Return the finding of a number that is expected from `least` to `most`, both included."""
    return check(
        statement, expected=f"{least:g} to {most:g} {unit}", found=f"{found:g} {unit}", holds=least <= found <= most
    )


def measured(statement: str, found: object) -> Finding:
    """Return the finding of a value about which gpushare says nothing."""
    return Finding(statement, "", str(found), Verdict.MEASURED)


def skipped(statement: str, reason: str) -> Finding:
    """Return the finding of a statement that this machine cannot show."""
    return Finding(statement, "", reason, Verdict.SKIPPED)

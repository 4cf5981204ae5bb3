"""The type of a line of `gpushare doctor`: a part of the node, and whether it is right."""

from typing import Literal, NamedTuple

from gpushare_plugin.observe.parts import Part

Judgement = Literal["right", "wrong", "notLookedAt"]
"""Whether a part of the node is right for gpushare, is wrong, or was not looked at."""

WITH_RIGHTS = "Run doctor as root with CAP_DAC_READ_SEARCH, which root has on the node itself"
"""What to do where this process may not read a part of the node, as a sentence (capabilities(7))."""


class Diagnosis(Part, frozen=True):
    """One line: a part of the node, what was found there, and what to do."""

    subject: str
    """The part of the node, such as `driver`."""
    judgement: Judgement
    """Whether the part is right."""
    found: str
    """What was found; for a part that was not looked at the reason."""
    remedy: str | None = None
    """What to do about a part that is wrong; None otherwise."""
    improvement: str | None = None
    """What to do so that the node has the first isolation of a list of the config; None where it has."""


class Defect(NamedTuple):
    """Something that keeps a part of the node from working."""

    found: str
    """What was found."""
    remedy: str
    """What to do."""


def right(subject: str, found: str, improvement: str | None = None) -> Diagnosis:
    """Return the line of a part that is as gpushare needs it, and what would improve the part."""
    return Diagnosis(subject=subject, judgement="right", found=found, improvement=improvement)


def wrong(subject: str, found: str, remedy: str) -> Diagnosis:
    """Return the line of a part that keeps pods from their GPUs, with what to do."""
    return Diagnosis(subject=subject, judgement="wrong", found=found, remedy=remedy)


def one_of(*ways: str) -> str:
    """Return instructions of which one is enough, the best first, as one instruction."""
    listed = (f"({letter}) {way}" for letter, way in zip("abc", ways, strict=False))
    return f"do one of these, the best here first. {'. '.join(listed)}"


def drained(node: str, work: str) -> str:
    """Return what to do on a node without pods as an instruction that ends with a node which takes pods again.

    Of several such instructions, the last one lets pods come again.
    """
    return (
        f"drain the node (`kubectl drain {node} --ignore-daemonsets --delete-emptydir-data`), {work}. After the last "
        f"item here that drains the node, let pods come again: `kubectl uncordon {node}`"
    )


def not_looked_at(subject: str, reason: str) -> Diagnosis:
    """Return the line of a part of which nothing is known, with the reason."""
    return Diagnosis(subject=subject, judgement="notLookedAt", found=reason)

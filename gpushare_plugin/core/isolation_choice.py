"""The isolation that a node has chosen for a GPU from a list of the config, in words.

The reasons why isolations were passed over have the name of the isolation in front, as in `driver: the driver is old`.
"""

from collections.abc import Iterable, Sequence


def first_of_list(isolation: str, passed_over: Sequence[str]) -> str:
    """Return the name of the first isolation of the list; `passed_over` are the reasons, in the order of the list."""
    return passed_over[0].partition(": ")[0] if passed_over else isolation


def choice_words(isolation: str, passed_over: Iterable[str]) -> str:
    """Return the chosen isolation and each reason once, as in `isolation none, not driver or mps: REASON`."""
    names: dict[str, list[str]] = {}
    for name, _, reason in (each.partition(": ") for each in passed_over):
        names.setdefault(reason, []).append(name)
    return ", not ".join((f"isolation {isolation}", *(f"{' or '.join(of)}: {reason}" for reason, of in names.items())))

"""The isolation of an entry on a node: the first that the node has, in the order of the config."""

from collections.abc import Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.findings import Findings
from gpushare_plugin.sharing.isolation.layer import Isolation, SharedGpus


class Choice(Struct, frozen=True):
    """The isolation of an entry, one for all GPUs of the entry."""

    isolation: Isolation = Isolation()
    """The isolation."""
    passed_over: tuple[str, ...] = ()
    """The isolations before it in the order of the config, each with the reason why the node lacks it, for people."""


def choose(isolations: Sequence[Isolation], shared: SharedGpus, findings: Findings) -> Choice:
    """Return the first of `isolations` that the node has for the `shared` GPUs, with the findings about that isolation.

    Where the node has none, the reasons are a problem of the config.
    """
    passed_over: list[str] = []
    for isolation in isolations:
        reason = isolation.why_not(shared.containers)
        if not reason or len(isolations) == 1:
            isolation.check(shared, findings)  # tells all that is wrong with the only isolation
            if shared.containers:
                _tell_lost_keys(isolation, isolations, shared, findings)
            return Choice(isolation, tuple(passed_over))
        passed_over.append(f"{isolation.name}: {reason}")
    if shared.containers:
        findings.problem(
            (*shared.path, "isolation"),
            f"found {', '.join(each.name for each in isolations)}, of which this node has none for the GPUs of "
            f"{shared.title}: {'; '.join(passed_over)}; change the list or the devices of the entry",
        )
    return Choice(passed_over=tuple(passed_over))


def _tell_lost_keys(chosen: Isolation, isolations: Sequence[Isolation], shared: SharedGpus, findings: Findings) -> None:
    """Warn of keys of the entry that other isolations of the list would put into force, and the chosen one does not."""
    for key in sorted(frozenset().union(*(each.keys_in_force for each in isolations)) - chosen.keys_in_force):
        with_key = " or ".join(each.name for each in isolations if key in each.keys_in_force)
        findings.notice(
            f"{shared.title}: {key} has no effect on this node, because its isolation is {chosen.name}, and only "
            f"{with_key} puts {key} into force"
        )

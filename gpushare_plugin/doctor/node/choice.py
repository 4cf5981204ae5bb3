"""The isolation that a node uses for an entry of the config: the first of the entry's list that the node has.

The daemon decides the same way, see `gpushare_plugin.sharing.isolation.choice`; doctor decides by what it sees of the
node.
"""

from collections.abc import Callable, Collection, Iterable

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.isolations import includes_driver, includes_mps, is_always_mps
from gpushare_plugin.doctor.node.diagnosis import Defect
from gpushare_plugin.doctor.node.needs import EntryNeeds


class EntryChoice(Struct, frozen=True):
    """The isolation of an entry on a node."""

    entry: EntryNeeds
    """What the entry needs."""
    isolation: str
    """The name of the isolation; empty where the node has none of the list."""
    no_driver: Defect | None = None
    """Why the node has no driver limits for the entry; None if it has."""

    @property
    def needs_mps(self) -> bool:
        """Whether the node has to serve MPS for the entry."""
        return includes_mps((self.isolation,)) or is_always_mps(self.entry.isolations)

    @property
    def needs_hami_core(self) -> bool:
        """Whether the node has to have the library of HAMi-core for the entry."""
        return self.isolation == "hami-core"

    @property
    def misses_mps(self) -> bool:
        """Whether the entry names MPS before the isolation that the node uses."""
        names = self.entry.isolations
        return includes_mps(names[: names.index(self.isolation)] if self.isolation else names)

    @property
    def misses_driver(self) -> bool:
        """Whether the entry names driver limits, and the node does not use them for the entry."""
        return includes_driver(self.entry.isolations) and not includes_driver((self.isolation,))


def chosen(entry: EntryNeeds, no_driver: Defect | None, *, no_mps: bool) -> EntryChoice:
    """Return the isolation of an entry on a node; `no_mps` is whether no GPU of the node can be shared by MPS."""

    def has(name: str) -> bool:
        return not (no_driver and includes_driver((name,))) and not (no_mps and includes_mps((name,)))

    first = next(filter(has, entry.isolations), "")
    return EntryChoice(entry, first, no_driver)


def in_any_case(entries: Iterable[EntryNeeds], needs: Callable[[EntryChoice], bool], *, no_mps: bool) -> bool:
    """Return whether an entry `needs` something whether or not the node has driver limits."""
    unknown = (None, Defect("not known", ""))
    return any(all(needs(chosen(entry, case, no_mps=no_mps)) for case in unknown) for entry in entries)


def names_of(choices: Collection[EntryChoice]) -> tuple[str, ...]:
    """Return the names of the isolations that a node uses, each once."""
    return tuple(dict.fromkeys(choice.isolation for choice in choices if choice.isolation))


def takes_next(lack: str, names: Collection[str]) -> str:
    """Return that the config takes isolations with these names here, because of what the node lacks for another one."""
    nothing = ", with which nothing limits the memory of containers" if "none" in names else ""
    return (
        f"{'no limits: ' if set(names) == {'none'} else ''}{lack}, so the config takes the next isolation of its list: "
        f"{' or '.join(names)}{nothing}"
    )

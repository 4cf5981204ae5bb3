"""What a partitioner has done since it started, for metrics."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.resource import NO_WAITS, Durations
from gpushare_plugin.telemetry.views import PartitionerView


class RoundStanding(Struct, frozen=True):
    """What is known in a term: whether all is listed, and how much there is to do; as in `PartitionerView`."""

    listed: bool = False
    nodes: int = 0
    waiting: int = 0
    longest_wait: float = 0.0
    kept: int = 0
    unwritten: int = 0
    cache_age: float | None = None


@dataclass(slots=True)
class Counts:
    """Counts of what was done, over all terms; as in `PartitionerView`."""

    made: Counter[str] = field(default_factory=Counter)
    taken_back: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    rounds: int = 0
    round_seconds: float = 0.0
    waits: Durations = NO_WAITS

    def view(self, standing: RoundStanding | None, api_errors: Mapping[str, int], *, leads: bool) -> PartitionerView:
        """Return what a scrape shows; `standing` is None outside of a term."""
        now = standing if standing is not None and leads else RoundStanding()
        return PartitionerView(
            leads=leads,
            ready=now.listed,
            nodes=now.nodes,
            waiting=now.waiting,
            longest_wait=now.longest_wait,
            kept=now.kept,
            unwritten=now.unwritten,
            made=dict(self.made),
            taken_back=dict(self.taken_back),
            refused=dict(self.refused),
            rounds=self.rounds,
            round_seconds=self.round_seconds,
            waits=self.waits,
            cache_age=now.cache_age,
            api_errors=api_errors,
        )

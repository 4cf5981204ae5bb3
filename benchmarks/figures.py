"""A figure: what was measured, what the floor needed for the same, and the goal."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, get_args

Statistic = Literal["median", "p99", "worst"]


@dataclass(frozen=True, slots=True)
class Summary:
    """What `count` samples come to; of fewer than a hundred, `p99` is the worst."""

    median: float
    p99: float
    worst: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Summarise samples, one at least."""
        ordered = sorted(samples)
        p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
        return cls(statistics.median(ordered), p99, ordered[-1], len(ordered))

    @classmethod
    def of_runs(cls, runs: Sequence[Self]) -> Self:
        """Return the median of each statistic of several runs, one at least; `count` is of all samples."""
        median, p99, worst = (statistics.median(run.value(each) for run in runs) for each in get_args(Statistic))
        return cls(median, p99, worst, sum(run.count for run in runs))

    def value(self, statistic: Statistic) -> float:
        """Look up one statistic by name."""
        values: dict[Statistic, float] = {"median": self.median, "p99": self.p99, "worst": self.worst}
        return values[statistic]


@dataclass(frozen=True, slots=True)
class Goal:
    """The most a statistic may be: in the figure's unit, or, with `of_floor`, as a multiple of the floor's."""

    statistic: Statistic
    limit: float
    of_floor: bool = False

    def __str__(self) -> str:
        """Write the goal as the table shows it."""
        return f"{self.statistic} ≤ {self.limit:g}{' x floor' if self.of_floor else ''}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table; a higher value is worse unless the unit is `pods/s`.

    `note` says what the figure is not, or where its time went.
    """

    name: str
    unit: str
    measured: Summary
    floor: Summary | None = None
    goals: tuple[Goal, ...] = ()
    note: str = ""

    @classmethod
    def of_runs(cls, runs: Sequence[Self]) -> Self:
        """Return what several runs of one figure, one at least, come to; the note is that of the last."""
        last, floors = runs[-1], [run.floor for run in runs if run.floor is not None]
        floor = Summary.of_runs(floors) if floors else None
        return replace(last, measured=Summary.of_runs([run.measured for run in runs]), floor=floor)

    @property
    def ratio(self) -> float | None:
        """How many times the floor's median the figure's is; None without a floor to divide by."""
        return self.measured.median / self.floor.median if self.floor and self.floor.median else None

    def meets(self, goal: Goal) -> bool:
        """Tell whether a goal is met."""
        limit = goal.limit
        if goal.of_floor:
            limit *= self.floor.value(goal.statistic) if self.floor else math.nan
        return self.measured.value(goal.statistic) <= limit

    def missed(self) -> list[str]:
        """Return a sentence for each goal that is missed."""
        return [self._missed(goal) for goal in self.goals if not self.meets(goal)]

    def _missed(self, goal: Goal) -> str:
        floor = f", the floor is {self.floor.value(goal.statistic):.3g}" if self.floor and goal.of_floor else ""
        return f"{self.name}: {self.measured.value(goal.statistic):.3g} {self.unit} (goal {goal}{floor})"

    def as_data(self) -> dict[str, Any]:
        """Return the figure as plain data, goals with whether they are met."""
        goals = [{**asdict(goal), "met": self.meets(goal)} for goal in self.goals]
        return {**asdict(self), "ratio": self.ratio, "goals": goals}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return the figure that `as_data` wrote down."""
        return cls(
            data["name"],
            data["unit"],
            Summary(**data["measured"]),
            Summary(**data["floor"]) if data["floor"] else None,
            tuple(Goal(goal["statistic"], goal["limit"], goal["of_floor"]) for goal in data["goals"]),
            data["note"],
        )


def single(name: str, unit: str, value: float, *goals: Goal, floor: float | None = None, note: str = "") -> Figure:
    """Return the figure of something that is measured once."""
    return Figure(name, unit, Summary.of([value]), None if floor is None else Summary.of([floor]), goals, note)

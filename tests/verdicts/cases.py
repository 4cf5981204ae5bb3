"""The kinds of verdicts: how many of 10,000 are of each, how its inputs are made, and who decides about them."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tests.verdicts.deciders import chooser, cut, extender, partitioner
from tests.verdicts.generate import calls, clusters, cuts, partitioned
from tests.verdicts.generate.draw import Draw, Json

GENERATOR = 1
"""Changes whenever the inputs of a seed do; recorded verdicts of another one say nothing."""


class Kind(NamedTuple):
    """One kind of verdict: `make` draws an input, `decide` is what today's code makes of it."""

    share: float
    make: Callable[[Draw], Json]
    decide: Callable[[Json], Json]


KINDS: Mapping[str, Kind] = {
    "extender": Kind(0.5, clusters.question, extender.decide),
    "partitioner": Kind(0.25, partitioned.situation, partitioner.decide),
    "chooser": Kind(0.15, calls.kubelet, chooser.decide),
    "cut": Kind(0.1, cuts.life, cut.decide),
}


class Case(NamedTuple):
    """One input, by the kind, the seed and the number of which it is made again at any time."""

    kind: str
    seed: int
    number: int

    def asked(self) -> Json:
        """Return the input, as it is after its way through JSON."""
        found: Json = json.loads(json.dumps(KINDS[self.kind].make(Draw(GENERATOR, *self))))
        return found

    def __str__(self) -> str:
        """Return it as the options of `record` that show it."""
        return f"--show {self.kind} {self.number} --seed {self.seed}"


class Verdict(NamedTuple):
    """What was decided about the input that has this hash."""

    asked: str
    decided: Json


def verdict(case: Case) -> Verdict:
    """Return what today's code decides about a case."""
    asked = case.asked()
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:12]
    decided = KINDS[case.kind].decide(asked)
    return Verdict(digest, json.loads(json.dumps(decided)))


def cases(count: int, seed: int) -> Iterator[Case]:
    """Yield so many cases, of each kind its share."""
    for kind, (share, *_) in KINDS.items():
        for number in range(round(count * share)):
            yield Case(kind, seed, number)

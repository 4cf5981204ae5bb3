"""What verdicts are about: how many pods fit, and how often each refusal was given."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from tests.verdicts.cases import Case, Verdict
from tests.verdicts.generate.draw import Json

_OWN_WORDS = re.compile(r"'[^']*'|\bGPU-[0-9a-f-]+|\bMIG-[0-9a-f-]+|\d+(\.\d+)?|\b(team|other)/\w+|\b[nr]#")


def told(found: Mapping[Case, Verdict]) -> str:
    """Return the statistics of verdicts, kind by kind, as text."""
    counts: dict[str, Counter[str]] = {}
    for case, verdict in found.items():
        counts.setdefault(case.kind, Counter()).update(_KINDS[case.kind](verdict.decided))
    lines = []
    for kind, of_kind in counts.items():
        lines.append(f"{kind}: {sum(case.kind == kind for case in found):,} verdicts")
        lines += [f"  {count:6,} {what}" for what, count in of_kind.most_common()]
    return "\n".join(lines) + "\n"


def alike(text: str) -> str:
    """Return a sentence without its numbers and names."""
    return _OWN_WORDS.sub("#", text)[:150]


def extender(decided: Json) -> Iterator[str]:
    """Yield what an answer of the extender has."""
    for answer in (decided, decided["next"]):
        found = answer["filter"]
        yield from ("fits" for _ in found.get("NodeNames") or ())
        for curable in ("FailedNodes", "FailedAndUnresolvableNodes"):
            for why in found.get(curable, {}).values():
                yield f"refused ({'curable' if curable == 'FailedNodes' else 'incurable'}): {alike(why)}"
        for score in answer["prioritize"].values():
            yield f"score {score}"
    for pods, violations in decided.get("preempt", {}).values():
        yield f"preempted: {min(len(pods), 4)} victims, {min(violations, 3)} violations"
    for bound in decided["bind"].values():
        yield (
            f"not bound: {alike(re.sub(r'(GPU .*? of .*?)(, GPU.*|;.*)?$', 'GPU …', bound))}"
            if isinstance(bound, str)
            else "bound"
        )


_KINDS = {"extender": extender}

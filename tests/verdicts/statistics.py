"""What verdicts are about: how many pods fit, how often each refusal was given, and each way and policy was asked."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping

from tests.verdicts.cases import Case, Verdict
from tests.verdicts.generate.draw import Json

_NAMES = re.compile(
    r"\(?\b(GPU|MIG)-[0-9a-zA-Z-]+(, [^()]*\))?\)?|'[^']*'|\"[^\"]*\"|\b(pod )?(team|other)/[\w-]+|\b[pw][0-9]+\b"
    r"|\bn[0-9]+(, n[0-9]+)*( and \d+ more)?|[0-9][0-9,.]*"
)
_RESOURCES = re.compile(r"\b(nvidia|example|aliyun)\.com/[\w.-]+")
_LONGEST = 130

_WAYS = re.compile(r'\\"(kind|partitioning|mode)\\":\\"([\w-]+)\\"|"(isolation)": "([\w-]+)"')
_POLICIES = re.compile(r'("[\w./-]*(?:placement|-policy|nPolicy)"|\\"placement\\"): ?(?:\\?"(\w+)\\?")')


def told(found: Mapping[Case, Verdict]) -> str:
    """Return the statistics of verdicts, kind by kind, as text."""
    counts: dict[str, Counter[str]] = {}
    for case, verdict in found.items():
        counts.setdefault(case.kind, Counter()).update((*_inputs(case), *_KINDS[case.kind](verdict.decided)))
    lines = []
    for kind, of_kind in counts.items():
        lines.append(f"{kind}: {sum(case.kind == kind for case in found):,} verdicts")
        lines += [f"  {count:6,} {what}" for what, count in sorted(of_kind.items(), key=lambda each: -each[1])]
    return "\n".join(lines) + "\n"


def _inputs(case: Case) -> Iterator[str]:
    """Yield the ways and the policies of an input, each once."""
    text = json.dumps(case.asked())
    found = {" ".join(filter(None, match.groups())) for match in _WAYS.finditer(text)}
    found |= {f"policy {match[1].strip(chr(92) + chr(34))}: {match[2]}" for match in _POLICIES.finditer(text)}
    yield from (f"input: {each}" for each in sorted(found))


def alike(text: str) -> str:
    """Return a sentence without its numbers and names."""
    return _NAMES.sub("#", _RESOURCES.sub("RESOURCE", text))[:_LONGEST]


def _extender(decided: Json) -> Iterator[str]:
    for answer in (decided, decided["next"]):
        found = answer["filter"]
        yield "a pod that fits somewhere" if found.get("NodeNames") else "a pod that fits nowhere"
        yield from ("a node that fits" for _ in found.get("NodeNames") or ())
        for where, curable in (("FailedNodes", "curable"), ("FailedAndUnresolvableNodes", "incurable")):
            for why in found.get(where, {}).values():
                yield f"refused, {curable}: {alike(why)}"
        yield from (f"score {score}" for score in answer["prioritize"].values())
    for pods, violations in decided.get("preempt", {}).values():
        yield f"preempted: {min(len(pods), 4)} victims, {min(violations, 3)} violations"
    for bound in (*decided.get("earlier", ()), *decided["bind"].values()):
        yield f"not bound: {alike(_first_gpu(bound))}" if isinstance(bound, str) else "bound"


def _first_gpu(text: str) -> str:
    """Return a refusal with what is said of its first GPU only."""
    return re.sub(r"(missing: GPU [^,;]*).*", r"\1 …", text)


def _partitioner(decided: Json) -> Iterator[str]:
    for each in (decided, decided["again"]):
        yield f"nodes that change: {len(each['wanted'])}"
        for _, _, hows in each.get("kept", {}).values():
            yield from (f"slice: {how}" for how in hows or ("kept as before",))
        yield from ("offered elsewhere" for _ in each.get("offered", ()))
        yield from ("broken" for _ in each.get("broken", ()))
        yield from (f"left out: {alike(reason)}" for reason in each.get("left out", {}).values())
        for event in each["events"]:
            reason, _, said = event.partition(" ")
            for part in _parts(said.partition(": ")[2]):
                yield f"{reason}: {alike(part)}"


def _parts(text: str) -> list[str]:
    """Return the causes that a message names, and what it says of GPUs."""
    head, _, rest = text.partition("no slice can be made for ")
    if rest:
        return [re.sub(r"^.*?\b\d+ nodes?: ", "", each) for each in re.split(r"; |, (?=GPU )", rest)]
    return [re.sub(r"^.* is no longer kept for the pod: ", "no longer kept: ", head)]


def _chooser(decided: Json) -> Iterator[str]:
    yield from (f"problem: {alike(each)}" for each in decided.get("problems", ()))
    for each in decided.get("calls", ()):
        yield f"of {each['resource']}"
        preferred = each["preferred"]
        yield f"not preferred: {alike(preferred)}" if isinstance(preferred, str) else "preferred"
        yield f"refused: {alike(each['refused'])}" if "refused" in each else "granted"


def _cut(decided: Json) -> Iterator[str]:
    for step in decided["steps"]:
        yield from (f"step with {key}" for key in step)
        yield from (f"notice: {alike(each)}" for each in (*step.get("notices", ()), *step.get("problems", ())))
        yield from (f"waits: {alike(each)}" for each in step.get("waiting", {}).values())


_KINDS = {"extender": _extender, "partitioner": _partitioner, "chooser": _chooser, "cut": _cut}

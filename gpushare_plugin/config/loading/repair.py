"""From a file as it is to settings that can be used: finds all that is wrong, and leaves it out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpushare_plugin.config.loading import checks
from gpushare_plugin.config.loading.messages import meant_key, message
from gpushare_plugin.config.places import Finding, Node, Places
from gpushare_plugin.config.schema.fields import field_at, keys, kind_at
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.config.spelling import nearest
from gpushare_plugin.foundation.errors import MOST_PROBLEMS, Path

_STAND_INS = {
    "unit": "GiB",
    "devices": "all",
    "placement": "binpack",
    "replicas": 2,
    "isolation": "none",
    "compute": "proportional",
    "frameworkHints": False,
}
"""What stands in for a wrong value of an entry of `sharing` until its name has been compared with the others."""


@dataclass(frozen=True, slots=True)
class Override:
    """A value that stands in for the file's; `source` names the option or variable it was given with."""

    path: Path
    value: object
    source: str


class TooManyMistakesError(Exception):
    """So much is wrong that there is no use in looking for more; `left_out` is how much of it was not looked at."""

    def __init__(self, left_out: int) -> None:
        """Stop with so many mistakes not looked at."""
        super().__init__()
        self.left_out = left_out


class Repair:
    """Validates what it has, notes what is wrong, leaves that out, and starts over until the rest is right.

    A misspelt key is read as the one it is nearest to, so that what stands below it is checked as well. The tree given
    as `root` is changed; in the end it holds what the config was made of.
    """

    def __init__(self, root: Node, findings: Sequence[Finding], overrides: Sequence[Override]) -> None:
        """Begin with `root`, what is known to be wrong with it, and the values to put over it."""
        self.findings = list(findings)
        self._root = root
        self._overrides = list(overrides)
        self._declared = set(_declared(root))
        self._flawed: list[tuple[Path, list[Node]]] = []

    def config(self) -> Config:
        """Return the settings that remain; all that was wrong is in `findings` then.

        Raises TooManyMistakesError once there are more than are told.
        """
        config = self._valid()
        places = Places(self._root)
        problems = list(checks.problems(config, places))
        for number, problem in enumerate(problems):
            self._stop_at_many(len(problems) - number)
            self.findings.append(Finding(places.place(problem.path), problem.message))
            self._flawed.append(self._removable(problem.path))
        if not self.findings:
            return config
        for path, nodes in self._flawed:
            self._remove(path, nodes)
        # Replicas of a name that only a left-out entry of `resources` gives go too; they are no problem of their own.
        self._declared = set(_declared(self._root))
        noted, self.findings = self.findings, []
        config = self._valid()
        self.findings = noted
        return config

    def _valid(self) -> Config:
        while True:
            self._put_overrides(create=False)
            self._rename_mig()
            try:
                config = Config.model_validate(
                    self._root.plain(), by_alias=True, by_name=False, context={"declared": self._declared}
                )
            except ValidationError as error:
                self._take_out(error.errors(include_url=False))
                continue
            if not self._overrides:
                return config
            self._put_overrides(create=True)

    def _put_overrides(self, *, create: bool) -> None:
        """Put overrides into the sections they belong in, which are created only if `create`.

        Sections are created last, for one that seems to be missing may stand there under a misspelt key.
        """
        self._overrides = [override for override in self._overrides if not self._put(override, create=create)]

    def _put(self, override: Override, *, create: bool) -> bool:
        node = self._root
        for depth, key in enumerate(override.path[:-1], start=1):
            if create and node.section is not None:
                node.section.setdefault(str(key), Node.of({}, override.source, override.path[:depth]))
            inner = node.child(key)
            if inner is None:
                return False
            node = inner
            if node.value is None:
                node.value = {}
        if node.section is None:
            return False
        node.section[str(override.path[-1])] = Node.of(override.value, override.source, override.path)
        return True

    def _rename_mig(self) -> None:
        # NVIDIA's plugin reads `mig`, its documents and users also write `migs`.
        resources = self._root.child("resources")
        if resources and resources.section and "migs" not in resources.section and "mig" in resources.section:
            resources.section["migs"] = resources.section.pop("mig")

    def _take_out(self, errors: Sequence[ErrorDetails]) -> None:
        """Note what is wrong, give misspelt keys their right name, and leave the rest of the wrong out."""
        unknown = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
        meant = self._meant(unknown[:MOST_PROBLEMS])
        doomed = []
        own = [error for error in errors if not _follows(error, meant)]
        for number, error in enumerate(own):
            self._stop_at_many(len(own) - number)
            self._note(error)
            if error["type"] != "extra_forbidden":
                doomed.append((error["loc"], *self._removable(error["loc"])))
        for path in unknown:
            section = self._root.along(path[:-1])[-1].section or {}
            node = section.pop(str(path[-1]))
            if path in meant:
                section[str(meant[path][-1])] = node
        for wrong, path, nodes in doomed:
            self._leave_out(wrong, path, nodes)

    def _stop_at_many(self, left: int) -> None:
        if len(self.findings) >= MOST_PROBLEMS:
            raise TooManyMistakesError(left)

    def _meant(self, unknown: Sequence[Path]) -> dict[Path, Path]:
        """Return the paths that unknown keys were meant for: what stands there is still worth checking."""
        meant: dict[Path, Path] = {}
        for path in unknown:
            key = meant_key(path)
            if key is None or (right := (*path[:-1], key)) in meant.values():
                continue
            if len(self._root.along(right)) <= len(path):
                meant[path] = right
        return meant

    def _note(self, error: ErrorDetails) -> None:
        path = error["loc"]
        nodes = self._root.along(path)
        place = nodes[-1].key_place if error["type"] == "extra_forbidden" else nodes[-1].place
        # A validator may point into a value that is no list in the file; only what is missing has no node of its own.
        absent = path[len(nodes) - 1 :] if error["type"] == "missing" else ()
        self.findings.append(Finding(replace(place, path=(*place.path, *absent)), message(error)))

    def _removable(self, path: Path) -> tuple[Path, list[Node]]:
        """Return the path of what goes for a wrong value at `path`, of a list of sections the entry; and the nodes."""
        for depth, key in enumerate(path):
            if isinstance(key, int):
                kind = kind_at(path[: depth + 1])
                path = path[: depth + 1] if kind and kind.section else path[:depth]
                break
        nodes = self._root.along(path)
        return path[: len(nodes) - 1], nodes

    def _leave_out(self, wrong: Path, path: Path, nodes: list[Node]) -> None:
        key, entry = wrong[-1] if len(path) == len(wrong) else wrong[len(path)], nodes[-1]
        if path[:1] == ("sharing",) and entry.section is not None and key in _STAND_INS:
            entry.section[str(key)] = Node(entry.place, entry.key_place, _STAND_INS[str(key)])
            self._flawed.append((path, nodes))
        else:
            self._remove(path, nodes)

    def _remove(self, path: Path, nodes: Sequence[Node]) -> None:
        """Remove the last of `nodes`, which stand along `path`, and what cannot be without it."""
        around, gone = nodes[-2], nodes[-1]
        field = field_at(path)
        if around.items is not None:
            around.value = [node for node in around.items if node is not gone]
            needed = not around.value
        else:
            around.value = {key: node for key, node in (around.section or {}).items() if node is not gone}
            needed = field is not None and field.is_required()
        if needed:
            self._remove(path[:-1], nodes[:-1])


def _declared(node: Node, path: Path = ()) -> Iterator[str]:
    """Give the names that stand anywhere but in `sharing`, so that a slip beside a name does not make it unknown."""
    for key, member in node.members:
        if not path and member.members and nearest(str(key), keys(Config)) == "sharing":
            continue
        if key == "name" and isinstance(member.value, str):
            yield member.value if "/" in member.value else f"nvidia.com/{member.value}"
        yield from _declared(member, (*path, key))


def _follows(error: ErrorDetails, meant: Mapping[Path, Path]) -> bool:
    """Tell whether an error comes of another one: what is missing under its right key, or left of a list of wrongs."""
    return (error["type"] == "missing" and error["loc"] in meant.values()) or (
        error["type"] == "too_short" and bool(error["input"])
    )

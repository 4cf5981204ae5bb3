"""All mistakes in a config file: unknown keys, wrong values, and names given twice."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpushare_plugin.base.errors import MOST_PROBLEMS, Path
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.config.loading.messages import meant_key, unknown_key, wrong_value
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.fields import Kind, keys
from gpushare_plugin.config.schema.places import Finding, PlacedValue, SourcePlace
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.slices.slice import Slice


class Override(Struct, frozen=True):
    """A value that replaces a value of the file."""

    path: Path
    """The path of the setting."""
    value: object
    """The value."""
    source: str
    """The option or environment variable that gives the value."""


class Mistakes:
    """Validates a file, and collects the mistakes."""

    def __init__(self, root: PlacedValue, findings: Sequence[Finding]) -> None:
        """Start with the values in `root`, to be changed, and with the mistakes already known."""
        self.findings = list(findings)
        """The mistakes: at most MOST_PROBLEMS, unless more were known at the start."""
        self.left_out = 0
        """The number of mistakes left out of `findings`."""
        self._root = root
        self._unread: set[int] = set()

    def config(self, overrides: Sequence[Override]) -> Config | None:
        """Return the config, with `overrides` put over the file's values; None if there is any mistake."""
        self._rename_mig()
        self._check_keys(self._root, Kind(Config))
        for override in overrides:
            _put(self._root, override)
        config = self._validated()
        self._check_names()
        self._check_mps()
        return None if self.findings else config

    def _rename_mig(self) -> None:
        # NVIDIA's plugin reads `mig`; NVIDIA's documents and users also write `migs`.
        for resources in self._root.at("resources"):
            if resources.section and "migs" not in resources.section and "mig" in resources.section:
                resources.section["migs"] = resources.section.pop("mig")

    def _check_keys(self, node: PlacedValue, kind: Kind) -> None:
        """Remove unknown keys, but rename a misspelt key, so that the values below are checked as well."""
        if kind.item is not None:
            for item in node.items or ():
                self._check_keys(item, kind.item)
        if kind.section is None or node.section is None:
            return
        known = keys(kind.section)
        for key in [key for key in node.section if key not in known]:
            member = node.section.pop(key)
            if self._find(member.key_place, partial(unknown_key, key, kind.section, member.plain())):
                meant = meant_key(key, kind.section)
                if meant is not None and member.section != {}:
                    node.section.setdefault(meant, member)
            else:
                self._unread.add(id(node))
        for key, member in node.section.items():
            self._check_keys(member, Kind.of(known[key].annotation))

    def _validated(self) -> Config | None:
        root, declared = self._root.plain(), _declared(self._root, "gpus") | _declared(self._root, "migs")
        try:
            return Config.model_validate(root, by_alias=True, by_name=False, context={"declared": declared})
        except ValidationError as error:
            for each in error.errors(include_url=False):
                if not self._follows(each):
                    self._find(self._place(each), partial(wrong_value, each))
        return None

    def _follows(self, error: ErrorDetails) -> bool:
        """Return whether an error follows from another mistake: wrong items, or a key possibly misspelt."""
        if error["type"] == "too_short":
            return bool(error["input"])
        return error["type"] == "missing" and id(self._root.along(error["loc"])[-1]) in self._unread

    def _place(self, error: ErrorDetails) -> SourcePlace:
        nodes = self._root.along(error["loc"])
        place = nodes[-1].place
        # Only for a missing value, append the keys without a node: a validator may point into a value that is no list.
        absent = error["loc"][len(nodes) - 1 :] if error["type"] == "missing" else ()
        return replace(place, path=(*place.path, *absent))

    def _check_names(self) -> None:
        """Find names that cannot be advertised, and names advertised twice."""
        wrong = {finding.place for finding in self.findings}
        taken: dict[str, SourcePlace] = {}
        for place, name in _advertised(self._root):
            if place in wrong:
                continue
            try:
                names.extended_resource(name)
            except ValueError as error:
                self._find(place, partial("with renameByDefault: {}".format, error))
            first = taken.setdefault(name, place)
            if first != place:
                self._find(place, partial('found "{}", already used at {}; choose another name'.format, name, first))

    def _check_mps(self) -> None:
        """Find entries for MIG instances among the resources of MPS."""
        instances = _declared(self._root, "migs")
        for node in self._root.at("sharing", "mps", "resources", ..., "name"):
            name = names.with_domain(node.text)
            if names.is_mig(name) or name in instances:
                message = 'found "{}", MIG instances, but MPS shares only whole GPUs; use sharing.timeSlicing'
                self._find(node.place, partial(message.format, name))

    def _find(self, place: SourcePlace, message: Callable[[], str]) -> bool:
        """Note a mistake; return False if the mistake is only counted, because too many messages would take long."""
        if len(self.findings) >= MOST_PROBLEMS:
            self.left_out += 1
            return False
        self.findings.append(Finding(place, message()))
        return True


def _put(root: PlacedValue, override: Override) -> None:
    """Put a value at its path, unless another value on the path is no section: validation reports this mistake."""
    node = root
    for depth, key in enumerate(override.path[:-1], start=1):
        if node.section is None:
            return
        node = node.section.setdefault(str(key), PlacedValue.of({}, override.source, override.path[:depth]))
        if node.value is None:
            node.value = {}
    if node.section is not None:
        node.section[str(override.path[-1])] = PlacedValue.of(override.value, override.source, override.path)


def _declared(root: PlacedValue, kind: str) -> set[str]:
    """Return the names given to GPUs or MIG instances in `resources`, including the names of wrong entries."""
    return {names.with_domain(name.text) for name in root.at("resources", kind, ..., "name") if name.text}


def _advertised(root: PlacedValue) -> Iterator[tuple[SourcePlace, str]]:
    """Yield every name advertised by `sharing`, with its place, including the names of wrong entries."""
    for way in ("timeSlicing", "mps"):
        by_default = any(node.value is True for node in root.at("sharing", way, "renameByDefault"))
        for entry in root.at("sharing", way, "resources", ...):
            for rename in (node for node in entry.at("rename") if node.text):
                yield rename.place, names.with_domain(rename.text)
                break
            else:
                for name in entry.at("name"):
                    yield name.place, names.with_domain(name.text) + (".shared" if by_default else "")
    # Several entries can have slices of the same size: all slices of a size are one resource.
    sizes = {size.text: size.place for size in reversed(root.at("sharing", "mps", "sizes", ..., "slices", ..., "size"))}
    yield from ((place, Slice("mps", size).resource) for size, place in sizes.items())
    for name in root.at("sharing", "memory", "resources", ..., "name"):
        yield name.place, name.text

"""Configs as they lie in Git: inside ConfigMap manifests, and inside Helm values.

The values are those of our chart and of NVIDIA's (`config.map`), also as a subchart's, and of NVIDIA's operator
(`devicePlugin.config.data`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpushare_plugin.config.loading.document import parse, parse_documents
from gpushare_plugin.config.places import Finding, Node, Origin, Place, spelled
from gpushare_plugin.config.spelling import printable, shown

_LITERAL_BLOCK = re.compile(r"\|[-+0-9]*\s*(#.*)?")


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """A config in a file: its values, None where the text is no config, and what is wrong with the text.

    `source` is the file's name; `name` leads to the config inside the file, and is empty where it is the whole file.
    """

    source: str
    name: str
    root: Node | None
    findings: Sequence[Finding] = ()

    def __str__(self) -> str:
        """Spell the file and the name."""
        source = printable(self.source)
        return f"{source} ({self.name})" if self.name else source

    @property
    def is_likely(self) -> bool:
        """Whether the values are those of a config, be it one with mistakes."""
        section = (self.root.section if self.root else None) or {}
        return "sharing" in section or ("version" in section and section["version"].value == "v1")


def whole_config(text: str, source: str) -> FoundConfig:
    """Return the config that a text is, as the daemon reads it."""
    documents = [root for root, _findings in parse_documents(text, source) if root is not None]
    if len(documents) > 1 and any(_kind(root) for root in documents):
        return FoundConfig(source, "", None, [Finding(Place(source), "found manifests, none of them with a config")])
    return FoundConfig(source, "", *parse(text, Origin(source)))


def embedded_configs(text: str, source: str) -> list[FoundConfig]:
    """Return the configs inside a text, none where the text holds no ConfigMap and no Helm values with configs.

    Of several ConfigMaps, those without a likely config are left out.
    """
    lines = text.split("\n")
    held: list[list[FoundConfig]] = []
    mistakes: list[Finding] = []
    for root, findings in parse_documents(text, source):
        holders = [] if root is None else [*_holders(root)]
        held += [[_config(member, source, lines) for member in members] for members in holders]
        mistakes += findings if holders or root is None else ()
    likely = [configs for configs in held if any(each.is_likely for each in configs)]
    found = [each for configs in likely or held for each in configs]
    return [*found, FoundConfig(source, "", None, mistakes)] if found and mistakes else found


def _holders(root: Node) -> Iterator[list[Node]]:
    """Yield the values of each ConfigMap in a document, or those that Helm makes one of."""
    kind = _kind(root)
    if kind.endswith("List"):
        for item in root.at("items", ...):
            # The items of a ConfigMapList need not say their kind.
            yield from _data(item) if kind == "ConfigMapList" else _holders(item)
    elif kind == "ConfigMap":
        yield from _data(root)
    elif not kind:
        for values in (root, *(root.section or {}).values()):
            for configs in values.at("config", "map"):
                yield [*(configs.section or {}).values()]
        for configs in root.at("devicePlugin", "config", "data"):
            yield [*(configs.section or {}).values()]


def _kind(root: Node) -> str:
    return next((node.text for node in root.at("kind")), "")


def _data(configmap: Node) -> Iterator[list[Node]]:
    for data in configmap.at("data"):
        yield [*(data.section or {}).values()]


def _config(node: Node, source: str, lines: Sequence[str]) -> FoundConfig:
    name = spelled(node.place.path)
    if node.section is not None and "data" not in node.place.path:  # Helm values may hold it as YAML
        return FoundConfig(source, name, node)
    if isinstance(node.value, str):
        return FoundConfig(source, name, *parse(node.value, _origin(node, node.value, lines)))
    message = f'found {shown(node.plain())}; expected a config as text: write "{node.place.path[-1]}: |"'
    return FoundConfig(source, name, None, [Finding(node.key_place, message)])


def _origin(node: Node, text: str, lines: Sequence[str]) -> Origin:
    """Return where a text begins that is a value of a file with these lines."""
    place = node.place
    first = next((number for number, line in enumerate(text.split("\n")) if line), 0)
    written, content = lines[place.line - 1][place.column - 1 :].rstrip("\r"), text.split("\n")[first]
    if _LITERAL_BLOCK.fullmatch(written) and place.line + first < len(lines):
        indentation = len(lines[place.line + first].rstrip("\r")) - len(content)
        return Origin(place.source, place.path, place.line, indentation)
    return Origin(place.source, place.path, place.line - 1, place.column - 1, quoted=True)

"""Configs kept in Git: inside ConfigMap manifests, and inside Helm values.

Configs are in `config.map` of our chart's values and of NVIDIA's chart's values, also as values of a subchart, and in
`devicePlugin.config.data` of the values of NVIDIA's operator.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.config.loading.document import parse, parse_documents
from gpushare_plugin.config.loading.load import DEFAULT
from gpushare_plugin.config.loading.recognition import (
    ConfiglessValues,
    has_keys_of_values_only,
    values_without_a_config,
    without_a_config,
)
from gpushare_plugin.config.schema.fields import keys
from gpushare_plugin.config.schema.places import Finding, Origin, PlacedValue, SourcePlace, spelled
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.config.schema.spelling import printable, shown

_BINARY = "binaryData"
_LITERAL_BLOCK = re.compile(r"\|[-+0-9]*\s*(#.*)?")


class FoundConfig(Struct, frozen=True):
    """A config in a file, or the reason why the text is no config."""

    source: str
    """The name of the file."""
    name: str
    """The path of the config inside the file; empty if the whole file is the config."""
    root: PlacedValue | None
    """The values; None if the text is no config."""
    findings: Sequence[Finding] = ()
    """The mistakes of the text."""
    is_other: bool = False
    """Whether the text is certainly no config but, for example, a manifest."""
    values: ConfiglessValues | None = None
    """What counts instead, if the text is Helm values without a config."""
    is_of_the_chart: bool = False
    """Whether the text is Helm values without a config, and with keys of our chart alone."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the file is right, and its config is in a ConfigMap."""
        return self.values is not None and not self.values.is_default and not self.findings

    def __str__(self) -> str:
        """Spell the file and the name."""
        source = printable(self.source)
        return f"{source} ({self.name})" if self.name else source

    @property
    def is_likely(self) -> bool:
        """Whether the values look like a config, perhaps a config with mistakes."""
        section = (self.root.section if self.root else None) or {}
        if "sharing" in section or ("version" in section and section["version"].value == "v1"):
            return True
        # `resources` alone is no evidence: a Kustomization and a container also have `resources`.
        return section.keys() <= keys(Config).keys() and section.keys() - {"resources"} != set()


def whole_config(text: str, source: str) -> FoundConfig:
    """Read the whole of a text as one config, like the daemon."""
    documents = [root for root, _findings in parse_documents(text, source) if root is not None]
    if len(documents) > 1 and any(_kind(root) for root in documents):
        mistake = Finding(SourcePlace(source), "found manifests, none of them with a config")
        return FoundConfig(source, "", None, [mistake], is_other=True)
    root, findings = parse(text, Origin(source))
    if root and (values := values_without_a_config(root)):
        default = PlacedValue.of(DEFAULT, source) if values.is_default else None
        ours = has_keys_of_values_only(root)
        return FoundConfig(source, "", default, findings, is_other=True, values=values, is_of_the_chart=ours)
    if other := root and without_a_config(root):
        return FoundConfig(source, "", None, [other], is_other=True)
    return FoundConfig(source, "", root, findings)


def embedded_configs(text: str, source: str) -> list[FoundConfig]:
    """Return the configs inside a text; none if the text has no ConfigMap and no Helm values with configs.

    If at least one ConfigMap has a likely config, ConfigMaps without a likely config are left out.
    """
    lines = text.split("\n")
    held: list[tuple[str, list[FoundConfig]]] = []
    mistakes: list[Finding] = []
    for number, (root, findings) in enumerate(parse_documents(text, source), start=1):
        holders = [] if root is None else [*_holders(root)]
        for holder, members in holders:
            configs = [_config(member, source, lines) for member in members]
            held.append((holder or f"document {number}", configs))
        mistakes += findings if holders or root is None else ()
    likely = [(holder, configs) for holder, configs in held if any(each.is_likely for each in configs)]
    found = _told_apart(likely or held)
    return [*found, FoundConfig(source, "", None, mistakes)] if found and mistakes else found


def _told_apart(held: Sequence[tuple[str, Sequence[FoundConfig]]]) -> list[FoundConfig]:
    """Return the configs; if two ConfigMaps have the same key, all names of configs begin with the ConfigMap."""
    names = Counter(config.name for _holder, configs in held for config in configs)
    if max(names.values(), default=0) <= 1:
        return [config for _holder, configs in held for config in configs]
    return [replace(config, name=f"{holder}: {config.name}") for holder, configs in held for config in configs]


def _holders(root: PlacedValue) -> Iterator[tuple[str, list[PlacedValue]]]:
    """Yield the name and the values of each ConfigMap in a document, and of each ConfigMap made from Helm values."""
    kind = _kind(root)
    if kind.endswith("List"):
        for item in root.at("items", ...):
            # The items of a ConfigMapList may lack a kind.
            yield from _data(item) if kind == "ConfigMapList" else _holders(item)
    elif kind == "ConfigMap":
        yield from _data(root)
    elif not kind:
        for values in (root, *(root.section or {}).values()):
            for configs in values.at("config", "map"):
                yield "", [*(configs.section or {}).values()]
        for configs in root.at("devicePlugin", "config", "data"):
            yield "", [*(configs.section or {}).values()]


def _kind(root: PlacedValue) -> str:
    return next((node.text for node in root.at("kind")), "")


def _data(configmap: PlacedValue) -> Iterator[tuple[str, list[PlacedValue]]]:
    name = "/".join(node.text for key in ("namespace", "name") for node in configmap.at("metadata", key) if node.text)
    members = [
        each for key in ("data", _BINARY) for data in configmap.at(key) for each in (data.section or {}).values()
    ]
    if members:
        yield name, members


def _config(node: PlacedValue, source: str, lines: Sequence[str]) -> FoundConfig:
    name = spelled(node.place.path)
    if _BINARY in node.place.path:
        mistake = f"found binary data; save the config as UTF-8 text, which stands in data: {node.place.path[-1]}"
        return FoundConfig(source, name, None, [Finding(node.key_place, mistake)])
    if node.section is not None and "data" not in node.place.path:  # Helm values may hold it as YAML
        return FoundConfig(source, name, node)
    if isinstance(node.value, str):
        return FoundConfig(source, name, *parse(node.value, _origin(node, node.value, lines)))
    message = f'found {shown(node.plain())}; expected a config as text: write "{node.place.path[-1]}: |"'
    return FoundConfig(source, name, None, [Finding(node.key_place, message)])


def _origin(node: PlacedValue, text: str, lines: Sequence[str]) -> Origin:
    """Return the origin of `text`, the value at `node` in a file with these lines."""
    place = node.place
    first = next((number for number, line in enumerate(text.split("\n")) if line), 0)
    written, content = lines[place.line - 1][place.column - 1 :].rstrip("\r"), text.split("\n")[first]
    if _LITERAL_BLOCK.fullmatch(written) and place.line + first < len(lines):
        indentation = len(lines[place.line + first].rstrip("\r")) - len(content)
        return Origin(place.source, place.path, place.line, indentation)
    return Origin(place.source, place.path, place.line - 1, place.column - 1, quoted=True)

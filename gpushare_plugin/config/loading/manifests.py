"""Configs as they lie in Git: inside ConfigMap manifests, and inside Helm values.

The values are those of our chart and of NVIDIA's (`config.map`), also as a subchart's, and of NVIDIA's operator
(`devicePlugin.config.data`).
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from gpushare_plugin.config.loading.document import parse, parse_documents
from gpushare_plugin.config.loading.recognition import without_a_config
from gpushare_plugin.config.places import Finding, Origin, PlacedValue, SourcePlace, spelled
from gpushare_plugin.config.schema.fields import keys
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.config.spelling import printable, shown
from gpushare_plugin.foundation.structs import Struct, replace

_BINARY = "binaryData"
_LITERAL_BLOCK = re.compile(r"\|[-+0-9]*\s*(#.*)?")


class FoundConfig(Struct, frozen=True):
    """A config in a file: its values, None where the text is no config, and what is wrong with the text.

    `source` is the file's name; `name` leads to the config inside the file, and is empty where it is the whole file.
    `is_other` says that the text is something else for sure, such as a manifest.
    """

    source: str
    name: str
    root: PlacedValue | None
    findings: Sequence[Finding] = ()
    is_other: bool = False

    def __str__(self) -> str:
        """Spell the file and the name."""
        source = printable(self.source)
        return f"{source} ({self.name})" if self.name else source

    @property
    def is_likely(self) -> bool:
        """Whether the values are those of a config, be it one with mistakes."""
        section = (self.root.section if self.root else None) or {}
        if "sharing" in section or ("version" in section and section["version"].value == "v1"):
            return True
        # The `resources` of a Kustomization are a list, those of a container have neither `gpus` nor `migs`.
        return section.keys() <= keys(Config).keys() and section.keys() - {"resources"} != set()


def whole_config(text: str, source: str) -> FoundConfig:
    """Return the config that a text is, as the daemon reads it."""
    documents = [root for root, _findings in parse_documents(text, source) if root is not None]
    if len(documents) > 1 and any(_kind(root) for root in documents):
        mistake = Finding(SourcePlace(source), "found manifests, none of them with a config")
        return FoundConfig(source, "", None, [mistake], is_other=True)
    root, findings = parse(text, Origin(source))
    if other := root and without_a_config(root):
        return FoundConfig(source, "", None, [other], is_other=True)
    return FoundConfig(source, "", root, findings)


def embedded_configs(text: str, source: str) -> list[FoundConfig]:
    """Return the configs inside a text, none where the text holds no ConfigMap and no Helm values with configs.

    Of several ConfigMaps, those without a likely config are left out.
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
    """Return the configs; where two ConfigMaps have the same key, the names of all say the ConfigMap."""
    names = Counter(config.name for _holder, configs in held for config in configs)
    if max(names.values(), default=0) <= 1:
        return [config for _holder, configs in held for config in configs]
    return [replace(config, name=f"{holder}: {config.name}") for holder, configs in held for config in configs]


def _holders(root: PlacedValue) -> Iterator[tuple[str, list[PlacedValue]]]:
    """Yield the name and the values of each ConfigMap in a document, or those that Helm makes one of."""
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
    """Return where a text begins that is a value of a file with these lines."""
    place = node.place
    first = next((number for number, line in enumerate(text.split("\n")) if line), 0)
    written, content = lines[place.line - 1][place.column - 1 :].rstrip("\r"), text.split("\n")[first]
    if _LITERAL_BLOCK.fullmatch(written) and place.line + first < len(lines):
        indentation = len(lines[place.line + first].rstrip("\r")) - len(content)
        return Origin(place.source, place.path, place.line, indentation)
    return Origin(place.source, place.path, place.line - 1, place.column - 1, quoted=True)

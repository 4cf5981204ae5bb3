"""The search for configs to check, in files and directories."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from gpushare_plugin.base.errors import ConfigError
from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.config.loading.document import decoded, read_text
from gpushare_plugin.config.loading.manifests import FoundConfig, embedded_configs, whole_config
from gpushare_plugin.config.schema.places import Finding, SourcePlace
from gpushare_plugin.config.schema.spelling import printable

_CONFIG_SUFFIXES = {".yaml", ".yml", ".json", ""}
_OTHER_SUFFIXES = {".css", ".go", ".html", ".js", ".lock", ".md", ".png", ".py", ".rst", ".sh", ".svg", ".toml", ".tpl"}
"""Suffixes of documents, programs and templates. The name of a config may end otherwise, like `a100-v1.2`."""

_MOUNTED = "..data"
"""The link made by the kubelet in the directory of a mounted ConfigMap."""

_MENTIONS_CONFIG = re.compile(r"""\bsharing["']?\s*:|\bversion\\?["']?\s*:\s*\\?["']?v1\b""")
_OTHER_FORMATS = re.compile(r"""\{\{|^["']?(kind|swagger|openapi)["']?\s*:""", re.MULTILINE)
"""Typical text of templates and of manifests of other kinds."""


class DirectorySearch(Struct):
    """The result of a search in a directory."""

    configs: list[FoundConfig] = field(default_factory=list)
    """The configs, and the files and directories that cannot be read."""
    passed_over: list[Path] = field(default_factory=list)
    """The files that may be configs but do not look like configs."""


def configs_in_bytes(content: bytes, source: str) -> list[FoundConfig]:
    """Return the configs in `content`, read from `source`."""
    return _configs(decoded(content, source), source)


def configs_in_file(file: Path) -> list[FoundConfig]:
    """Return the configs in a file: at least one, with the mistakes if the file is no config."""
    return _configs(_read(file), str(file))


def configs_in_directory(directory: Path) -> DirectorySearch:
    """Return the configs in all files below a directory.

    An unreadable file is a mistake. Manifests, Helm values of other charts, templates, documents and programs without a
    config are left out.
    """
    search = DirectorySearch()

    def refused(error: OSError) -> None:
        source = str(error.filename)
        finding = Finding(SourcePlace(source), f"this directory cannot be read: {error.strerror}")
        search.configs.append(FoundConfig(source, "", None, [finding]))

    for file in sorted(_files(directory, refused)):
        found = configs_in_file(file) if (file.parent / _MOUNTED).exists() else _likely_configs(file)
        if found is None:
            search.passed_over.append(file)
        else:
            search.configs += found
    if not search.configs:
        finding = Finding(SourcePlace(str(directory)), "found no config in any file here")
        search.configs.append(FoundConfig(str(directory), "", None, [finding]))
    return search


def _configs(text: str | Finding, source: str) -> list[FoundConfig]:
    if isinstance(text, Finding):
        return [FoundConfig(source, "", None, [text])]
    return embedded_configs(text, source) or [whole_config(text, source)]


def _files(directory: Path, refused: Callable[[OSError], None]) -> Iterator[Path]:
    """Yield the files that may hold configs, without hidden files, which belong to Git or the mount of a ConfigMap.

    `refused` gets the error of each unreadable directory.
    """
    for folder, folders, files in os.walk(directory, onerror=refused):
        folders[:] = (name for name in folders if name[:1] != ".")
        for name in files:
            if name[:1] != "." and Path(name).suffix.lower() not in _OTHER_SUFFIXES:
                yield Path(folder, name)


def _likely_configs(file: Path) -> list[FoundConfig] | None:
    """Return the configs in a file: none for a file of another kind, None if the kind is unclear."""
    try:
        text = read_text(file)
    except ConfigError as error:
        return _configs(_unreadable(file, error), str(file))
    return None if isinstance(text, Finding) else _likely_configs_in(text, file)


def _likely_configs_in(text: str, file: Path) -> list[FoundConfig] | None:
    if embedded := embedded_configs(text, str(file)):
        return embedded if any(each.is_likely for each in embedded) else []
    config = whole_config(text, str(file))
    if config.is_of_the_chart:
        return [config]
    if config.is_other or (not config.is_likely and _OTHER_FORMATS.search(text)):
        return []
    # A text with a syntax error may be a config with a mistake.
    is_broken = config.root is None and _MENTIONS_CONFIG.search(text) and file.suffix.lower() in _CONFIG_SUFFIXES
    return [config] if config.is_likely or is_broken else None


def _read(file: Path) -> str | Finding:
    try:
        return read_text(file)
    except ConfigError as error:
        return _unreadable(file, error)


def _unreadable(file: Path, error: ConfigError) -> Finding:
    (line,) = error.lines
    return Finding(SourcePlace(str(file)), line.removeprefix(f"{printable(str(file))}: "))

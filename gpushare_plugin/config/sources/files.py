"""The configs in files and directories that somebody wants to have checked."""

import re
from collections.abc import Iterator
from pathlib import Path

from gpushare_plugin.config.loading.document import decoded, read_text
from gpushare_plugin.config.loading.manifests import FoundConfig, embedded_configs, whole_config
from gpushare_plugin.config.places import Finding, Place
from gpushare_plugin.config.spelling import printable
from gpushare_plugin.foundation.errors import ConfigError

_SUFFIXES = {".yaml", ".yml", ".json", ""}
"""Those of configs; in a mounted ConfigMap they have none."""

_MENTIONS_CONFIG = re.compile(r"""\bsharing["']?\s*:|\bversion\\?["']?\s*:\s*\\?["']?v1\b""")
_OTHER_FORMATS = re.compile(r"""\{\{|^["']?(kind|swagger|openapi)["']?\s*:""", re.MULTILINE)
"""What templates, and manifests of other kinds, have in their text."""


def configs_in_bytes(content: bytes, source: str) -> list[FoundConfig]:
    """Return the configs in what was read from `source`."""
    return _configs(decoded(content, source), source)


def configs_in_file(file: Path) -> list[FoundConfig]:
    """Return the configs in a file: at least one, with its mistakes if it is none."""
    return _configs(_read(file), str(file))


def configs_in_directory(directory: Path) -> list[FoundConfig]:
    """Return the configs in all files below a directory that have any; other files are passed over."""
    found = [config for file in _files(directory) for config in _likely_configs(file)]
    if found:
        return found
    return [FoundConfig(str(directory), "", None, [Finding(Place(str(directory)), "found no config in any file here")])]


def _configs(text: str | Finding, source: str) -> list[FoundConfig]:
    if isinstance(text, Finding):
        return [FoundConfig(source, "", None, [text])]
    return embedded_configs(text, source) or [whole_config(text, source)]


def _files(directory: Path) -> Iterator[Path]:
    """Yield the files that may hold configs; names with a dot first are Git's or a ConfigMap mount's own."""
    for file in sorted(directory.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(directory).parts)
        if not hidden and file.suffix in _SUFFIXES and file.is_file():
            yield file


def _likely_configs(file: Path) -> list[FoundConfig]:
    text = _read(file)
    if isinstance(text, Finding) or not _MENTIONS_CONFIG.search(text):
        return []
    if embedded := embedded_configs(text, str(file)):
        return embedded if any(each.is_likely for each in embedded) else []
    config = whole_config(text, str(file))
    # Text with a syntax error may be a config with a mistake, unless it is something else for sure.
    return [config] if config.is_likely or (config.root is None and not _OTHER_FORMATS.search(text)) else []


def _read(file: Path) -> str | Finding:
    try:
        return read_text(file)
    except ConfigError as error:
        (line,) = error.lines
        return Finding(Place(str(file)), line.removeprefix(f"{printable(str(file))}: "))

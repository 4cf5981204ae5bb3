"""Plain scalars of YAML: the value of unquoted text, and the text of a value that reads back."""

import re

import yaml

KINDS: dict[str, type | tuple[type, ...]] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:float": (float, int),
    "tag:yaml.org,2002:null": type(None),
}
"""The required type of a value by tag."""

_WORDS: dict[str, object] = {
    spelling: value
    for word, value in (("true", True), ("yes", True), ("on", True), ("false", False), ("no", False), ("off", False))
    for spelling in (word, word.capitalize(), word.upper())
} | dict.fromkeys(("", "~", "null", "Null", "NULL"))
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})", re.ASCII)
_OTHER_BASE = re.compile(r"[-+]?0(x[0-9a-fA-F]{1,30}|o?[0-7]{1,30}|b[01]{1,60})", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,30}|[0-9]{1,30}(\.[0-9]{0,30})?)([eE][-+]?[0-9]{1,3})?", re.ASCII)


def resolved(text: str) -> object:
    """Return the value of unquoted text, like the YAML reader of Kubernetes.

    The reader of Kubernetes knows no base-60 numbers: `1:0`, a MIG index, is text and not 60.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _OTHER_BASE.fullmatch(text):
        octal = re.sub(r"^([-+]?)0(?=[0-7])", r"\g<1>0o", text)
        return int(octal, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


def write(data: object) -> str:
    """Spell plain data as YAML; reading the YAML returns equal data."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that would be read back as another value."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None if isinstance(resolved(text), str) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)

"""Messages in plain words for text that is not YAML, or is read with another meaning than intended."""

import yaml

from gpushare_plugin.config import skeleton
from gpushare_plugin.config.loading.messages import sections_with
from gpushare_plugin.config.schema.fields import keys
from gpushare_plugin.config.schema.places import Finding, Origin, PlacedValue, SourcePlace
from gpushare_plugin.config.schema.sections import Config


class TextError(yaml.MarkedYAMLError):
    """A text is no config file; the `problem` is in words for people."""

    def __init__(self, problem: str, mark: yaml.Mark) -> None:
        """Report `problem` at `mark`."""
        super().__init__(problem=problem, problem_mark=mark)


def syntax_problem(error: yaml.YAMLError, text: str, origin: Origin) -> Finding:
    """Return a finding for the `error` by which the YAML parser stopped in `text`, a text at `origin`."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return _unprintable(error, text, origin)
    lines = text.splitlines() or [""]
    line = min(mark.line, len(lines) - 1)
    place = origin.place(line + 1, mark.column + 1 if line == mark.line else len(lines[line]) + 1)
    advice = _advice(error, lines[line], mark.column, origin)
    if "indent" in advice and (meant := skeleton.advice(text)):
        advice += f". {meant}"
    return Finding(place, f"line {line + 1} of this text: {advice}" if origin.quoted else advice)


def without_indentation(root: PlacedValue, text: str) -> Finding | None:
    """Return a finding with the intended config if `text`, read as `root`, has keys of sections at the top level."""
    known = keys(Config)
    if not any(key not in known and sections_with(key) for key in root.section or {}):
        return None
    meant = skeleton.advice(text)
    return None if meant is None else Finding(root.place, f"found keys of sections at the top level. {meant}")


def _advice(error: yaml.YAMLError, line: str, column: int, origin: Origin) -> str:
    if isinstance(error, TextError):
        return str(error.problem)
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" in indentation or line[column : column + 1] == "\t":
        return "found a tab; indent with spaces"
    problem, context = str(getattr(error, "problem", "")), str(getattr(error, "context", ""))
    opened = getattr(error, "context_mark", None)
    begun = f"on line {origin.place(opened.line + 1, 1).line}" if opened else "above"
    for phrase, advice in _ADVICE.items():
        if phrase in f"{context}: {problem}":
            return advice.format(begun=begun)
    return "this is not YAML; check the line and the one above"


_ADVICE = {
    "quoted scalar: found unexpected": "text in quotes that began {begun} does not end",
    "quoted scalar": "a backslash that YAML cannot interpret; put the text in single quotes",
    "flow sequence": 'the list that "[" opens {begun} is not closed or lacks a comma',
    "flow mapping": 'the section that "{{" opens {begun} is not closed or lacks a comma',
    "mapping values are not allowed": (
        'found ":" where no value can begin; check the indentation, or put text that holds ": " in quotes'
    ),
    "could not find expected ':'": 'a key without ":" after it; write "key: value"',
    "block collection": 'the indentation does not fit the list begun {begun}; align the "-" of its entries',
    "block sequence": "found an entry of a list where none is allowed; check the indentation",
    "block mapping": "the indentation does not fit the section begun {begun}; align its keys",
    "but found another document": "a second document begins here; a config file holds one",
    "cannot start any token": "found a character that no value can begin with; put the text in quotes",
}


def _unprintable(error: yaml.YAMLError, text: str, origin: Origin) -> Finding:
    offset, character = getattr(error, "position", 0), getattr(error, "character", None)
    place = place_after(text.encode()[:offset].decode("utf-8", "replace"), origin)
    name = f"the character U+{character:04X}" if isinstance(character, int) and character >= 0 else "a character"
    return Finding(place, f"found {name}, which is not allowed in text; remove it")


def place_after(before: str, origin: Origin) -> SourcePlace:
    """Return the place right after `before`, the beginning of the text at `origin`."""
    return origin.place(before.count("\n") + 1, len(before) - before.rfind("\n"))

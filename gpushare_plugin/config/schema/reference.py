"""Tables of all keys of a config file, in Markdown, for the documents."""

import json

from pydantic.fields import FieldInfo

from gpushare_plugin.config.schema.fields import Kind, keys, sections
from gpushare_plugin.config.schema.places import spelled
from gpushare_plugin.config.schema.sections import Config, Section

NOTHING = ("Without effect.", "Not supported.")
"""The descriptions of keys that do nothing here, and load because NVIDIA's plugin knows them."""


def reference(root: type[Section] = Config) -> str:
    """Return the tables of a file in Markdown: a table per kind of section, in the order of the schema.

    `root` is the section of the whole file. A key that leads to sections has no row, because these have tables of
    their own. A row of an earlier table is not repeated: a sentence names that table. Keys that do nothing have no row.
    """
    places: dict[type[Section], list[str]] = {}
    for path, section in sections((), root):
        place = spelled(path).replace("[0]", "[]")
        places.setdefault(section, []).append(f"`{place}`" if place else "Top level")
    told: dict[str, str] = {}
    tables = (_table(section, ", ".join(where), told) for section, where in places.items())
    return "\n\n".join(filter(None, tables)) + "\n"


def _table(section: type[Section], title: str, told: dict[str, str]) -> str:
    # Defaults are the values of a section built without settings; a required setting has no default.
    defaults = section.model_construct().model_dump(mode="json", by_alias=True)
    new: list[str] = []
    earlier: dict[str, list[str]] = {}
    for key, field in keys(section).items():
        kind = Kind.of(field.annotation, tuple(field.metadata))
        if kind.section or (kind.item and kind.item.section) or field.description in NOTHING:
            continue
        row = _row(key, kind, field, defaults.get(key))
        first = told.setdefault(row, title)
        if first == title:
            new.append(row)
        else:
            earlier.setdefault(first, []).append(f"`{key}`")
    repeated = " ".join(f"As in {first}: {', '.join(found)}." for first, found in earlier.items())
    table = "\n".join(["| Key | Allowed | Default | Meaning |", "| --- | --- | --- | --- |", *new]) if new else ""
    parts = [part for part in (repeated, table) if part]
    return "\n\n".join([f"### {title}", *parts]) if parts else ""


def _row(key: str, kind: Kind, field: FieldInfo, default: object) -> str:
    given = "" if default is None else f"`{json.dumps(default)}`"
    literal = kind.allowed.replace("|", "\\|").replace("<", "\\<")
    return f"| `{key}` | {literal} | {'required' if field.is_required() else given} | {field.description} |"

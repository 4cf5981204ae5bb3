"""Tables of all keys of a config file, in Markdown, for the documents."""

import json

from pydantic.fields import FieldInfo

from gpushare_plugin.config.schema.fields import Kind, keys, sections
from gpushare_plugin.config.schema.places import spelled
from gpushare_plugin.config.schema.sections import Config, Section


def reference(root: type[Section] = Config) -> str:
    """Return the tables of a file in Markdown: a table per kind of section, in the order of the schema.

    `root` is the section of the whole file. A row of an earlier table is not repeated: it names that table.
    """
    places: dict[type[Section], list[str]] = {}
    for path, section in sections((), root):
        place = spelled(path).replace("[0]", "[]")
        places.setdefault(section, []).append(f"`{place}`" if place else "Top level")
    told: dict[str, str] = {}
    return "\n\n".join(_table(section, ", ".join(where), told) for section, where in places.items()) + "\n"


def _table(section: type[Section], title: str, told: dict[str, str]) -> str:
    # Defaults are the values of a section built without settings; a required setting has no default.
    defaults = section.model_construct().model_dump(mode="json", by_alias=True)
    rows = {key: _row(key, field, defaults.get(key)) for key, field in keys(section).items()}
    first = {key: told.setdefault(row, title) for key, row in rows.items()}
    shown = [row if first[key] == title else f"| `{key}` | | | As in {first[key]}. |" for key, row in rows.items()]
    return "\n".join([f"### {title}", "", "| Key | Allowed | Default | Meaning |", "| --- | --- | --- | --- |", *shown])


def _row(key: str, field: FieldInfo, default: object) -> str:
    kind = Kind.of(field.annotation, tuple(field.metadata))
    if kind.section:
        allowed, default = "section", None
    else:
        allowed = "sections" if kind.item and kind.item.section else kind.allowed
    given = "" if default is None else f"`{json.dumps(default)}`"
    literal = allowed.replace("|", "\\|").replace("<", "\\<")
    return f"| `{key}` | {literal} | {'required' if field.is_required() else given} | {field.description} |"

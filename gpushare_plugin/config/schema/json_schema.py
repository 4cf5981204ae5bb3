"""The schema of the config as JSON Schema, for editors and for `values.schema.json` of the chart.

Draft 7 is the newest draft known to both Helm 3 and the editors. The schema has no `$ref`, and can therefore be part of
another schema. The schema accepts every config accepted by the loader; only the loader checks rules between keys.
"""

from annotated_types import Ge, Gt, Le, MinLen
from pydantic.fields import FieldInfo

from gpushare_plugin.config.schema.fields import Kind, keys
from gpushare_plugin.config.schema.sections import Allowed, Config, Resources, Section
from gpushare_plugin.config.schema.values import JsonSchema

DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft of JSON Schema."""

_TYPES: dict[object, str] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def config_schema() -> JsonSchema:
    """Return the schema of a config file, for reading only: parts of the schema are shared."""
    return {"$schema": DRAFT, "title": "Config of gpushare", **section_schema(Config)}


def section_schema(section: type[Section]) -> JsonSchema:
    """Return the schema of a section, with the schemas of all its settings."""
    defaults = section.model_construct().model_dump(mode="json", by_alias=True)
    schema: JsonSchema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _field(section, field, defaults.get(key)) for key, field in keys(section).items()},
    }
    if required := [key for key, field in keys(section).items() if field.is_required()]:
        schema["required"] = required
    if section is Resources:  # the loader reads both spellings, because NVIDIA's documents use both
        schema["properties"]["mig"] = schema["properties"]["migs"]
        schema["not"] = {"required": ["mig", "migs"]}
    return schema


def _field(section: type[Section], field: FieldInfo, default: object) -> JsonSchema:
    kind = Kind.of(field.annotation, tuple(field.metadata))
    schema = {"description": field.description, **_kind(kind)}
    if default is not None and not kind.section:
        schema["default"] = default
    return _or_null(schema) if section.may_be_empty(field) else schema


def _kind(kind: Kind) -> JsonSchema:
    for note in kind.metadata:
        if isinstance(note, Allowed) and note.schema is not None:
            return dict(note.schema)
    if kind.section:
        return section_schema(kind.section)
    if kind.item:
        return {"type": "array", "items": _kind(kind.item), **_limits(kind, "minItems")}
    if kind.words:
        return {"enum": [*kind.words]}
    return {"type": _TYPES[kind.bare], **_limits(kind, "minLength")}


def _limits(kind: Kind, least_length: str) -> JsonSchema:
    limits: JsonSchema = {}
    for note in kind.metadata:
        match note:
            case MinLen(length):
                limits[least_length] = length
            case Ge(least):
                limits["minimum"] = least
            case Gt(below):
                limits["exclusiveMinimum"] = below
            case Le(most):
                limits["maximum"] = most
            case _:
                pass
    return limits


def _or_null(schema: JsonSchema) -> JsonSchema:
    """Allow a missing value, too, without `anyOf` where possible: validators report mistakes below `anyOf` badly."""
    match schema:
        case {"type": list() as types}:
            return {**schema, "type": [*types, "null"]}
        case {"type": one}:
            return {**schema, "type": [one, "null"]}
        case {"enum": values}:
            return {**schema, "enum": [*values, None]}
        case {"anyOf": options}:
            return {**schema, "anyOf": [*options, {"type": "null"}]}
        case _:
            raise TypeError(f"found no type in the schema {schema}")

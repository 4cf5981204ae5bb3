"""The setting at a path of the schema: type, allowed values, and the other keys of the section."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le, MinLen
from pydantic.fields import FieldInfo

from gpushare_plugin.base.errors import Path
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.sections import Allowed, Config, Section


class Kind(Struct, frozen=True):
    """The kind of values accepted by a setting."""

    bare: Any
    """The type, without metadata and without None."""
    metadata: tuple[object, ...] = ()
    """The metadata of the setting's annotation."""

    @classmethod
    def of(cls, annotation: Any, metadata: tuple[object, ...] = ()) -> "Kind":
        """Read an annotation; `X | None` is read as `X`."""
        if get_origin(annotation) is Annotated:
            inner, *more = get_args(annotation)
            return cls.of(inner, (*metadata, *more))
        if get_origin(annotation) in {Union, UnionType}:
            options = [option for option in get_args(annotation) if option is not type(None)]
            if len(options) == 1:
                return cls.of(options[0], metadata)
        return cls(annotation, metadata)

    @property
    def section(self) -> type[Section] | None:
        """The model of a section; None for any other setting."""
        return self.bare if isinstance(self.bare, type) and issubclass(self.bare, Section) else None

    @property
    def item(self) -> "Kind | None":
        """The kind of each entry of a list; None for any other setting."""
        return Kind.of(get_args(self.bare)[0]) if get_origin(self.bare) is tuple else None

    @property
    def words(self) -> tuple[str | int, ...]:
        """The allowed words, or numbers, of a choice; empty for any other setting."""
        return get_args(self.bare) if get_origin(self.bare) is Literal else ()

    @property
    def allowed(self) -> str:
        """The accepted values, in words."""
        for note in self.metadata:
            if isinstance(note, Allowed):
                return note.text
        if self.section:
            return f"a section with the keys {', '.join(keys(self.section))}"
        if self.item:
            least = any(isinstance(note, MinLen) for note in self.metadata)
            return f"a list of {'at least one of ' if least else ''}{self.item.allowed}"
        if self.words:
            return ", ".join(map(str, self.words))
        return self._simple()

    def _simple(self) -> str:
        name = {bool: "true or false", int: "a whole number", str: "text"}[self.bare]
        least = [note.ge for note in self.metadata if isinstance(note, Ge)]
        most = [note.le for note in self.metadata if isinstance(note, Le)]
        if least and most:
            return f"{name} from {least[0]} to {most[0]}"
        return f"{name} of {least[0]} or more" if least else name


@cache
def keys(section: type[Section]) -> Mapping[str, FieldInfo]:
    """Return the fields of `section` by their keys in the file."""
    return {str(field.alias): field for field in section.model_fields.values()}


def field_at(path: Path) -> FieldInfo | None:
    """Return the field with its value at `path`; None for entries of lists and paths outside the schema."""
    around = kind_at(path[:-1]) if path else None
    return keys(around.section).get(str(path[-1])) if around and around.section else None


def kind_at(path: Path, root: type[Section] = Config) -> Kind | None:
    """Return the kind of the setting at `path` below the section `root`; None for a path outside the section."""
    kind = Kind(root)
    for key in path:
        if isinstance(key, int):
            inner = kind.item
        else:
            field = keys(kind.section).get(key) if kind.section else None
            inner = Kind.of(field.annotation, tuple(field.metadata)) if field else None
        if inner is None:
            return None
        kind = inner
    return kind


def sections(path: Path = (), section: type[Section] = Config) -> Iterator[tuple[Path, type[Section]]]:
    """Yield the path and the model of every section of the schema; entries of lists have the index 0."""
    yield path, section
    for key, field in keys(section).items():
        kind = Kind.of(field.annotation)
        inner: Path = (*path, key)
        if kind.item:
            kind, inner = kind.item, (*inner, 0)
        if kind.section:
            yield from sections(inner, kind.section)

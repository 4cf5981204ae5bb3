"""Values with a spelling of their own: memory units, slices, shares of compute, devices and XIDs."""

import math
import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from annotated_types import Interval
from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema

from gpushare_plugin.base.memory import MIB_PER_GIB
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema.spelling import nearest, shown, wrong
from gpushare_plugin.core.gpu import MOST_MEMORY_MIB
from gpushare_plugin.slices.slice import SIZE, Slice

JsonSchema = dict[str, Any]
"""A schema in the words of JSON Schema."""

_WHEN_USED = ConfigDict(defer_build=True)
"""Few configs list devices or XIDs: what checks the entries is built for the first of them, not at each start."""


def text_like(pattern: str) -> JsonSchema:
    """Return the schema of text with a full match of `pattern`, a regular expression valid in Go and JavaScript."""
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


class Spelled(Struct, frozen=True, eq=False):
    """How the values of a field are spelled in the file, as a part of the field's annotation.

    pydantic's PlainValidator and PlainSerializer do the same, and first build the schema of the type, which nothing
    uses: 25 of the 1,376 million instructions of the daemon's imports.
    """

    parse: Callable[[object], object]
    """Reads a value of the file, and returns a value of the type unchanged; raises ValueError for other values."""
    plain: Callable[[Any], object] | None = None
    """Returns a value in the spelling of the file; None for values that are spelled as they are."""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema for pydantic; neither the type nor other annotations before this one matter."""
        plain = core_schema.plain_serializer_function_ser_schema(self.plain) if self.plain else None
        return core_schema.no_info_plain_validator_function(self.parse, serialization=plain)


class MemoryUnit(Struct, frozen=True, order=True):
    """The amount of GPU memory of one unit of a resource."""

    mib: int
    """The amount, in MiB."""

    allowed = "GiB, MiB or a multiple of one such as 2GiB or 256MiB"

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read `GiB`, `MiB`, `2GiB` or `256MiB`; raise ValueError with the nearest right spelling for other values."""
        if isinstance(text, str) and (match := _UNIT.fullmatch(text)):
            return cls(int(match[1] or 1) * _MIB[match[2]])
        raise ValueError(wrong(text, cls.allowed, cls._nearest(text)))

    @classmethod
    def _nearest(cls, text: object) -> str | None:
        if isinstance(text, bool) or not isinstance(text, (str, int, float)):
            return None
        match = _LOOSE_UNIT.fullmatch(str(text).lower())
        if match is None or not (match[1] or match[2] or match[3]):
            return None
        mib = round(Fraction(match[1] or 1) * _LOOSE_MIB[match[2] or "m"])
        return str(cls(max(mib, 1))) if mib < _MORE_THAN_ANY_GPU_MIB else None

    def __str__(self) -> str:
        """Spell the unit in the shortest form."""
        count, name = (self.mib, "MiB") if self.mib % MIB_PER_GIB else (self.mib // MIB_PER_GIB, "GiB")
        return name if count == 1 else f"{count}{name}"


_MORE_THAN_ANY_GPU_MIB = MIB_PER_GIB**2
"""A TiB: more memory than any GPU has. No message suggests a unit of this size."""
_MIB = {"MiB": 1, "GiB": MIB_PER_GIB}
_UNIT = re.compile(r"([1-9][0-9]{0,8})?(MiB|GiB)", re.ASCII)
_LOOSE_UNIT = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)?\s*([kmgt])?(i?b?|(?:bi)?bytes?)\s*", re.ASCII)
MEMORY_UNIT_SCHEMA = text_like(_UNIT.pattern)
_LOOSE_MIB = {"k": Fraction(1, 1024), "m": Fraction(1), "g": Fraction(MIB_PER_GIB), "t": Fraction(MIB_PER_GIB**2)}


def parse_card_memory(value: object) -> MemoryUnit:
    """Read the memory of a card, such as `96GiB`; raise ValueError for other values, and for more than any card has."""
    memory = value if isinstance(value, MemoryUnit) else MemoryUnit.parse(value)
    if memory.mib <= MOST_MEMORY_MIB:
        return memory
    raise ValueError(wrong(value, f"at most {MemoryUnit(MOST_MEMORY_MIB)}"))


def parse_added_memory(value: object) -> MemoryUnit:
    """Read memory to add, such as `512MiB`; raise ValueError for other values, and say for nothing what to write."""
    return _parse_some_memory(value, "to add nothing")


def parse_memory_by_default(value: object) -> MemoryUnit:
    """Read what is given where nothing is asked for; raise ValueError for other values, and for nothing of a GPU."""
    return _parse_some_memory(value, "for all of the memory")


def _parse_some_memory(value: object, meant: str) -> MemoryUnit:
    if _NOTHING.fullmatch(str(value)):
        raise ValueError(f"found {shown(value)}; {meant}, leave this key out. Allowed: {MemoryUnit.allowed}")
    return parse_card_memory(value)


_NOTHING = re.compile(r"\s*0+(\.0+)?\s*[a-z%]*\s*", re.ASCII | re.IGNORECASE)

Burst = MemoryUnit | int | float
"""How far a share may use free memory of its GPU: up to a size, or up to a multiple of the share, more than 1."""

BURST_ALLOWED = "a number more than 1, or a size such as 20GiB"
BURST_SCHEMA: JsonSchema = {"anyOf": [{"type": "number", "exclusiveMinimum": 1}, MEMORY_UNIT_SCHEMA]}
_LOOSE_FACTOR = re.compile(r"\s*([0-9]{1,4}(?:\.[0-9]{1,4})?)\s*x?\s*", re.ASCII)


def parse_burst(value: object) -> Burst:
    """Read a multiple such as `1.5`, or a size such as `20GiB`; raise ValueError for other values."""
    if isinstance(value, MemoryUnit):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1 < value < math.inf:
        return value
    if isinstance(value, str) and _UNIT.fullmatch(value):
        return parse_card_memory(value)
    factor = _LOOSE_FACTOR.fullmatch(value) if isinstance(value, str) else None
    raise ValueError(wrong(value, f"{BURST_ALLOWED}{', without quotes' if factor else ''}"))


def plain_burst(burst: Burst) -> str | int | float:
    """Return `burst` in the spelling of the file."""
    return str(burst) if isinstance(burst, MemoryUnit) else burst


SLICE_SIZE_ALLOWED = "a size such as 10gb"
SLICE_SIZE_SCHEMA = text_like(SIZE.pattern)
_LOOSE_SIZE = re.compile(r"\s*([1-9][0-9]{0,3})\s*g?i?b?\s*", re.ASCII)


def parse_slice(value: object) -> Slice:
    """Read a slice size, for example `10gb`; raise ValueError with the nearest right spelling for other values."""
    if isinstance(value, Slice):
        return value
    if isinstance(value, str) and SIZE.fullmatch(value):
        return Slice("mps", value)
    meant = _LOOSE_SIZE.fullmatch(str(value).lower())
    raise ValueError(wrong(value, SLICE_SIZE_ALLOWED, f"{meant[1]}gb" if meant else None))


_ComputeWord = Literal["proportional", "unlimited", "requested"]
_SliceComputeWord = Literal["proportional", "equal", "unlimited"]
Compute = _ComputeWord | int
"""A container's limit of a GPU's compute: in proportion to memory, no limit, as requested, or a percentage."""
SliceCompute = _SliceComputeWord | int
"""A slice's limit of a GPU's compute; `equal` divides the compute by the number of slices."""

COMPUTE_ALLOWED = "proportional, unlimited, requested, or a percentage from 1 to 100"
SLICE_COMPUTE_ALLOWED = "proportional, equal, unlimited, or a percentage from 1 to 100"

_WHOLE_PERCENTAGE = 100


def _compute_schema(*words: str) -> JsonSchema:
    return {"anyOf": [{"enum": [*words]}, {"type": "integer", "minimum": 1, "maximum": _WHOLE_PERCENTAGE}]}


COMPUTE_SCHEMA = _compute_schema(*get_args(_ComputeWord))
SLICE_COMPUTE_SCHEMA = _compute_schema(*get_args(_SliceComputeWord))
_LOOSE_PERCENTAGE = re.compile(r"\s*([1-9][0-9]?|100)\s*%?\s*", re.ASCII)
_Word = TypeVar("_Word", bound=str)


def parse_compute(value: object) -> Compute:
    """Read `proportional`, `unlimited`, `requested` or a whole percentage.

    Raises ValueError with the nearest right spelling for other values.
    """
    return _word_or_percentage(value, get_args(_ComputeWord), COMPUTE_ALLOWED)


def parse_slice_compute(value: object) -> SliceCompute:
    """Read `proportional`, `equal`, `unlimited` or a whole percentage.

    Raises ValueError with the nearest right spelling for other values.
    """
    return _word_or_percentage(value, get_args(_SliceComputeWord), SLICE_COMPUTE_ALLOWED)


def _word_or_percentage(value: object, words: tuple[_Word, ...], allowed: str) -> _Word | int:
    for word in words:
        if value == word:
            return word
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _WHOLE_PERCENTAGE:
        return value
    meant = None
    if isinstance(value, str):
        if percentage := _LOOSE_PERCENTAGE.fullmatch(value):
            found = f"found {shown(value)}; did you mean {percentage[1]}, without quotes? Allowed: {allowed}"
            raise ValueError(found)
        meant = nearest(value, words)
    raise ValueError(wrong(value, allowed, meant))


class AllDevices(Struct, frozen=True):
    """Every device of the kind."""


class DeviceCount(Struct, frozen=True):
    """A number of devices of the kind, from the devices that no other entry selects."""

    count: int
    """The number of devices."""


class DeviceList(Struct, frozen=True):
    """A list of devices."""

    references: tuple[str, ...]
    """The devices in the given order, each by index (`0`), MIG index (`0:1`) or UUID (`GPU-…`, `MIG-…`)."""


Devices = AllDevices | DeviceCount | DeviceList

DEVICES_ALLOWED = "all, a count of 1 or more, or a list of indices and UUIDs"
REFERENCE_ALLOWED = 'an index such as 0, a MIG index such as "0:1", or a UUID GPU-… or MIG-…'

_HEX = r"[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_INDEX = r"(?:0|[1-9][0-9]{0,5})"
_REFERENCE = re.compile(
    rf"{_INDEX}|{_INDEX}:{_INDEX}|GPU-{_UUID}|MIG-{_UUID}|MIG-GPU-{_UUID}/{_INDEX}/{_INDEX}",
)
DEVICES_SCHEMA: JsonSchema = {
    "anyOf": [
        {"const": "all"},
        {"type": "integer", "minimum": 1},
        {
            "type": "array",
            "minItems": 1,
            "uniqueItems": True,
            "items": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 999_999}, text_like(_REFERENCE.pattern)]},
        },
    ]
}


def parse_devices(value: object) -> Devices:
    """Read `all`, a count, or a list of devices; raise ValueError with an error for each wrong entry of a list."""
    if isinstance(value, Devices):
        return value
    if value == "all":
        return AllDevices()
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return DeviceCount(value)
    if isinstance(value, (list, tuple)) and value:
        references = _references.validate_python(value)
        _reject_twice(references)
        return DeviceList(references)
    raise ValueError(wrong(value, DEVICES_ALLOWED, _meant(value)))


def plain_devices(devices: Devices) -> str | int | list[int | str]:
    """Return `devices` in the spelling of the file."""
    match devices:
        case AllDevices():
            return "all"
        case DeviceCount(count):
            return count
        case DeviceList(references):
            return [int(reference) if reference.isdigit() else reference for reference in references]


def _reference(value: object) -> str:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str) and _REFERENCE.fullmatch(text):
        return text
    instead = f"{text[:3].upper()}{text[3:]}" if isinstance(text, str) else None
    raise ValueError(wrong(value, REFERENCE_ALLOWED, instead if instead and _REFERENCE.fullmatch(instead) else None))


_references = TypeAdapter(tuple[Annotated[str, Spelled(_reference)], ...], config=_WHEN_USED)


def _reject_twice(references: Iterable[str]) -> None:
    seen: set[str] = set()
    for reference in references:
        if reference in seen:
            raise ValueError(f'found "{reference}" twice; a device is listed once')
        seen.add(reference)


def _meant(value: object) -> str | None:
    if isinstance(value, str) and value.strip().lower() in {"all", "any", "*"}:
        return "all"
    if isinstance(value, str) and _REFERENCE.fullmatch(value):
        return f"[{value}]"
    return None


Xid = Annotated[int, Interval(ge=1, le=999_999)]
Xids = Literal["all"] | tuple[Xid, ...]
"""XIDs, the numbers of the driver's errors, in the given order."""

XID_ALLOWED = "an XID, a whole number from 1 to 999999"
XIDS_ALLOWED = "all, or a list of XIDs, whole numbers from 1 to 999999"

XID_SCHEMA: JsonSchema = {"type": "integer", "minimum": 1, "maximum": 999_999}
XIDS_SCHEMA: JsonSchema = {"anyOf": [{"const": "all"}, {"type": "array", "items": XID_SCHEMA}]}

_XIDS = TypeAdapter(tuple[Xid, ...], config=_WHEN_USED)
_EVERY_XID = {"all", "xids"}
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)


def parse_xids(value: object) -> Xids:
    """Read `all` or a list of XIDs; raise ValueError with an error for each wrong entry of a list."""
    if value == "all":
        return "all"
    if isinstance(value, (list, tuple)):
        return _XIDS.validate_python(tuple(value), strict=True)
    meant = "all" if isinstance(value, str) and value.strip().lower() in {*_EVERY_XID, "*"} else None
    raise ValueError(wrong(value, XIDS_ALLOWED, meant))


def plain_xids(xids: Xids) -> str | list[int]:
    """Return `xids` in the spelling of the file."""
    return xids if isinstance(xids, str) else list(xids)


def number_or_word(text: str) -> int | str:
    """Return `text` as a whole number; return other text, or more than 20 digits, unchanged."""
    return int(text) if _NUMBER.fullmatch(text) else text


def xids_in(text: str) -> object:
    """Read XIDs in the form of NVIDIA's variables: numbers with commas between; `all` or `xids` means every XID.

    Upper and lower case do not matter. Other words are returned unchanged, for `parse_xids` to reject.
    """
    words = [word.strip().lower() for word in text.split(",") if word.strip()]
    xids = tuple(number_or_word(word) for word in words if word not in _EVERY_XID)
    every = len(xids) < len(words)
    return "all" if every and all(isinstance(xid, int) for xid in xids) else xids

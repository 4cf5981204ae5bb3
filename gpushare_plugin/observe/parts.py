"""The base of all parts of reports, and reports as JSON."""

import msgspec

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.ledger.node_record import key


class Part(Struct, frozen=True, kw_only=True, rename=key):
    """A part of a report; a Struct, because the report of a large cluster has a hundred thousand parts.

    Readers ignore unknown fields, and take the default of a missing field: the writer may have another version.
    """


def encode(report: Part, indent: int | None = None) -> str:
    """Return a report as JSON."""
    encoded = msgspec.json.encode(report)
    return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()

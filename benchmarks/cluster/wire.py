"""JSON as clients of this benchmark write and read it."""

import json
from typing import Any


def encoded(value: Any) -> bytes:
    """Return a value as JSON."""
    return json.dumps(value).encode()


def decoded(text: bytes) -> Any:
    """Return the value in a JSON text."""
    return json.loads(text)

"""Lists, whole or in pages; all pages of a list show the objects of one moment."""

import base64
import json
from collections.abc import Iterable, Mapping

from gpushare_plugin.testing.cluster.store.errors import BadRequestError, ExpiredError
from gpushare_plugin.testing.cluster.store.objects import Store
from gpushare_plugin.testing.cluster.store.place import Collection
from gpushare_plugin.testing.cluster.store.selectors import Selector

_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


class Lists:
    """Answers lists; a list that goes on is kept until the store forgets its version."""

    def __init__(self, store: Store) -> None:
        """Answer from `store`."""
        self._store = store
        self._begun: dict[str, list[bytes]] = {}

    def answer(self, where: Collection, query: Mapping[str, str]) -> bytes:
        """Return the list that `query` asks for; raises BadRequestError and ExpiredError."""
        try:
            selector = Selector.of(query)
            limit = int(query.get("limit") or 0)
            token = query.get("continue")
            version, name, start = json.loads(base64.b64decode(token)) if token else (0, "", 0)
        except ValueError as error:
            raise BadRequestError(str(error)) from error
        if not token:
            version = self._store.version.value
            name = f"{version} {where} {selector}"
            bodies = [stored.body for _, stored in self._store.selected(where, selector)]
        elif version < self._store.oldest or name not in self._begun:
            raise ExpiredError(_EXPIRED)
        else:
            bodies = self._begun[name]
        end = start + limit if limit else len(bodies)
        metadata: dict[str, str | int] = {"resourceVersion": str(version)}
        if rest := len(bodies[end:]):
            self._begun[name] = bodies
            metadata["continue"] = base64.b64encode(json.dumps([version, name, end]).encode()).decode()
            if selector == Selector():  # the server does not count those that are selected
                metadata["remainingItemCount"] = rest
        head = json.dumps({**_list_type(where), "metadata": metadata}).encode()
        return _list(head, where, bodies[start:end])


def _list_type(where: Collection) -> dict[str, str]:
    return {**where.type_meta, "kind": f"{where.type_meta['kind']}List"}


def _list(head: bytes, where: Collection, bodies: Iterable[bytes]) -> bytes:
    """Return the text of a list, where only the list says of which kind its objects are; each is copied once."""
    type_meta = len(json.dumps(where.type_meta)) + 1
    parts: list[bytes | memoryview] = [head[:-1], b',"items":[']
    for number, body in enumerate(bodies):
        parts += (b",{" if number else b"{", memoryview(body)[type_meta:])
    return b"".join((*parts, b"]}"))

"""A bounded store: the values of the keys that were used last."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


class RecentlyUsed(Generic[KeyT, ValueT]):
    """The values of a number of keys; for one key more, the key that was not used for the longest time is forgotten."""

    def __init__(self, most: int) -> None:
        """Keep the values of `most` keys at most."""
        self._most = most
        self._values: OrderedDict[KeyT, ValueT] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def __contains__(self, key: KeyT) -> bool:
        """Return whether a key has a value, without using the key."""
        return key in self._values

    def get(self, key: KeyT) -> ValueT | None:
        """Return the value of a key, None without a value."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def items(self) -> list[tuple[KeyT, ValueT]]:
        """Return all keys with their values, without using the keys."""
        return list(self._values.items())

    def put(self, key: KeyT, value: ValueT) -> ValueT:
        """Keep and return the value of a key."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return value

    def forget(self, key: KeyT) -> None:
        """Forget a key, if the key is known."""
        self._values.pop(key, None)

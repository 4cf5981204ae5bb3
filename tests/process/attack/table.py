"""The table of attacks: one function for each, which says what is done, and puts its damage right in the end."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random

from tests.process.attack.target import Target

Making = Callable[[Target, Random], AsyncIterator[None]]

ATTACKS: list["Attack"] = []


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack that lasts as long as the context `on` returns; two attacks on one place do not go on at once."""

    name: str
    places: frozenset[str]
    on: Callable[[Target, Random], AbstractAsyncContextManager[None]]


def attack(*places: str) -> Callable[[Making], Making]:
    """Put a function into the table: it attacks, yields, and then puts things right again.

    Between, other attacks may begin and end, so that nothing with a scope of its own may be open at the `yield`.
    """

    def enter(making: Making) -> Making:
        ATTACKS.append(Attack(making.__name__, frozenset(places), contextlib.asynccontextmanager(making)))
        return making

    return enter

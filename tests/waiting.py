"""Waiting for a named state: the one way in which a test waits for what becomes true by itself and sets no event."""

import ast
import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar, overload

from gpushare_plugin.testing.running import PATIENCE

__all__ = ["LOOK_EVERY", "PATIENCE", "until", "until_blocking"]

LOOK_EVERY = 0.01
"""Seconds between two looks."""

T = TypeVar("T")


@overload
async def until(look: Callable[[], Awaitable[T]], state: Callable[[], object] = ..., within: float = ...) -> T: ...
@overload
async def until(look: Callable[[], T], state: Callable[[], object] = ..., within: float = ...) -> T: ...
async def until(look: Callable[[], Any], state: Callable[[], object] = str, within: float = PATIENCE) -> Any:
    """Look until what is seen is true, and return what was seen: assert on that, not on what a later look would see.

    `look` may return an awaitable. An error that it raises ends the wait: the state cannot come any more. Raises
    TimeoutError when the state does not come in time: with the expression that was waited for, with what its parts
    are instead, and with what `state` returns.
    """
    seen, limit = None, asyncio.timeout(within)
    try:
        async with limit:
            while not (seen := await _looked(look)):  # noqa: ASYNC110 - files, threads and other processes set no event
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TimeoutError(_instead(look, seen, state, within)) from error
    return seen


def until_blocking(look: Callable[[], T], state: Callable[[], object] = str) -> T:
    """Wait as `until` does, in a test without an event loop."""
    end = time.monotonic() + PATIENCE
    while not (seen := look()):
        if time.monotonic() > end:
            raise TimeoutError(_instead(look, seen, state, PATIENCE))
        time.sleep(LOOK_EVERY)
    return seen


async def _looked(look: Callable[[], Any]) -> Any:
    seen = look()
    return await seen if inspect.isawaitable(seen) else seen


def _instead(look: Callable[[], object], seen: object, state: Callable[[], object], within: float) -> str:
    """Say what was waited for, and what there is instead."""
    told = [f"{look} returned {seen!r}"]
    if isinstance(look, FunctionType) and (written := _expression(look.__code__)):
        names = look.__globals__ | dict(inspect.getclosurevars(look).nonlocals)
        told = [ast.unparse(written), *(list(_sides(written, names)) or [f"which is {seen!r}"])]
    return f"not so within {within:g} s: {'; '.join(filter(None, [*told, str(state())]))}"


def _expression(code: CodeType) -> ast.expr | None:
    """Return the expression of a lambda as it is written: the narrowest of its file around all its instructions."""
    if code.co_name != "<lambda>":
        return None
    places = [(line, column) for line, _, column, _ in code.co_positions() if line is not None and column]
    written = ast.walk(ast.parse(Path(code.co_filename).read_text()))
    around = [
        each.body
        for each in written
        if isinstance(each, ast.Lambda)
        and (each.body.lineno, each.body.col_offset) <= min(places)
        and (each.body.end_lineno or 0, each.body.end_col_offset or 0) > max(places)
    ]
    return max(around, key=lambda each: (each.lineno, each.col_offset), default=None)


def _sides(written: ast.expr, names: dict[str, object]) -> Iterator[str]:
    """Evaluate each side of the comparisons in an expression, but for what was written as a value."""
    for compared in ast.walk(written):
        for side in (compared.left, *compared.comparators) if isinstance(compared, ast.Compare) else ():
            if any(isinstance(node, ast.Name) for node in ast.walk(side)):
                with contextlib.suppress(Exception):  # the variable of a comprehension, or what is not there yet
                    value = eval(compile(ast.Expression(side), "<condition>", "eval"), names)  # noqa: S307 - a test's own
                    yield f"{ast.unparse(side)} is {value!r}"

"""The mean of results."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, TypeVar

from gpushare_plugin.observe.parts import Part

Result = TypeVar("Result")


def mean(results: Sequence[Result]) -> Result:
    """Return the mean of numbers, or of all numbers in tuples and parts of a report; what is the same stays.

    What is None in some results is the mean of the others.
    """
    there: list[Any] = [result for result in results if result is not None] or [None]
    first = there[0]
    if all(result == first for result in there):
        return first  # type: ignore[no-any-return]
    if isinstance(first, Part):
        fields = {name: mean([getattr(result, name) for result in there]) for name in first.__struct_fields__}
        return type(first)(**fields)  # type: ignore[return-value]
    if isinstance(first, tuple):
        columns: Any = zip(*there, strict=True)
        return tuple(map(mean, columns))  # type: ignore[return-value]
    return fmean(there)  # type: ignore[return-value]

"""The mean of results."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, TypeVar

from gpushare_plugin.observe.parts import Part

Result = TypeVar("Result")


def mean(results: Sequence[Result]) -> Result:
    """Return the mean of numbers, or of all numbers in tuples and parts of a report; what is the same stays."""
    first: Any = results[0]
    if all(result == first for result in results):
        return results[0]
    if isinstance(first, Part):
        fields = {name: mean([getattr(result, name) for result in results]) for name in first.__struct_fields__}
        return type(first)(**fields)  # type: ignore[return-value]
    if isinstance(first, tuple):
        columns: Any = zip(*results, strict=True)
        return tuple(map(mean, columns))  # type: ignore[return-value]
    return fmean(results)  # type: ignore[return-value,arg-type]

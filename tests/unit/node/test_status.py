"""Tests of `gpushare_plugin.node.status`: what is wrong with a part of the daemon is heard at its probes."""

import importlib
import pkgutil
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest

from gpushare_plugin import node
from gpushare_plugin.node.status import Serving


def parts() -> dict[str, tuple[Any, ...]]:
    """Return the parts of a daemon that serves, each with its classes: None where it may not be there."""
    found = pkgutil.walk_packages(node.__path__, f"{node.__name__}.")
    known = {name: each for module in found for name, each in vars(importlib.import_module(module.name)).items()}
    return {name: get_args(hint) or (hint,) for name, hint in get_type_hints(Serving, localns=known).items()}


@pytest.mark.parametrize("word", ["complaints", "missing"])
def test_every_part_is_heard(word: str) -> None:
    """A part that has `complaints` has them at `/healthz`, and one that has something `missing` at `/readyz`."""
    speaking = [name for name, classes in parts().items() if any(hasattr(each, word) for each in classes)]
    silent: Any = SimpleNamespace(allocations_known=True, sessions={}, complaints=[], missing=[])
    for name in speaking:
        said = SimpleNamespace(**{**vars(silent), word: [f"{name} says so"]})
        serving = Serving(**{**dict.fromkeys(parts(), silent), name: said})
        assert f"{name} says so" in getattr(serving, word), f"Serving.{word} in node/status.py does not ask {name}"

"""A config file to load, and its problems as a person reads them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_plugin.config.loading.load import Loaded, Override, load

Load = Callable[..., Loaded]


@pytest.fixture
def load_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Return a function that loads its text as `gpushare.yaml`, with overrides."""
    monkeypatch.chdir(tmp_path)

    def load_text(text: str | bytes, *overrides: Override) -> Loaded:
        file = Path("gpushare.yaml")
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(file, overrides)

    return load_text


@pytest.fixture
def lines_of(load_text: Load) -> Callable[..., list[str]]:
    """Return a function that gives the lines of what is wrong with a text."""

    def lines_of(text: str | bytes, *overrides: Override) -> list[str]:
        loaded = load_text(text, *overrides)
        return loaded.lines(loaded.problems)

    return lines_of

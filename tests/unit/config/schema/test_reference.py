"""The config files and messages in the documentation are what the schema says."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_plugin.config.loading.load import Loaded, load
from gpushare_plugin.config.schema.fields import Kind, keys, sections
from gpushare_plugin.config.schema.reference import NOTHING

DOCUMENT, MIG = ((Path(__file__).parents[4] / "docs" / name).read_text() for name in ("configuration.md", "mig.md"))
EXAMPLES, MIG_EXAMPLES = (re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) for text in (DOCUMENT, MIG))


def test_every_key_is_described() -> None:
    """Each key says what it means and what it takes."""
    for path, section in sections():
        for key, field in keys(section).items():
            assert field.description, (*path, key)
            assert Kind.of(field.annotation, tuple(field.metadata)).allowed, (*path, key)


def test_keys_that_do_nothing_are_named() -> None:
    """The tables leave them out: the page names each, or its section."""
    prose = DOCUMENT.partition("<!-- table -->")[0]
    for path, section in sections():
        for key, field in keys(section).items():
            whole = (*path, key)
            names = [".".join(map(str, whole[:length])) for length in range(1, len(whole) + 1)]
            if field.description in NOTHING:
                assert any(f"`{name}`" in prose for name in names), whole


@pytest.mark.parametrize("example", [*EXAMPLES[:-1], *MIG_EXAMPLES])
def test_examples_of_the_document_have_no_mistakes(load_text: Callable[..., Loaded], example: str) -> None:
    """Every file the documents recommend has nothing wrong."""
    loaded = load_text(example)
    assert loaded.lines(loaded.problems) == []


def test_the_first_example_means_the_same_as_no_file(load_text: Callable[..., Loaded]) -> None:
    """The document says so."""
    assert load_text(EXAMPLES[0]).config == load(None).config


def test_mistakes_are_reported_as_the_document_shows(lines_of: Callable[..., list[str]]) -> None:
    """The lines in the document are the lines of today."""
    [shown] = re.findall(r"```text\n(.*?)```", DOCUMENT, re.DOTALL)
    assert lines_of(EXAMPLES[-1]) == shown.splitlines()

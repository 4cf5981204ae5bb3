"""Tests of `gpushare_plugin.base.files.replacement`."""

import resource
from pathlib import Path

import pytest

from gpushare_plugin.base.files.replacement import replace_file
from gpushare_plugin.base.text import in_words


def test_an_error_of_a_write_names_the_file(tmp_path: Path) -> None:
    """The kernel names a file where opening fails, and none where there is no room to write."""
    file = tmp_path / "file"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            replace_file(file, "content")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert in_words(caught.value) == f"File too large: {file}"

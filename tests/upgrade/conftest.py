"""The two builds, each made once for all tests and all processes that run tests."""

import os

import pytest

from tests.upgrade.builds import OLD, WITH_CLAIMS, Build, HistoryMissingError, new_build, old_build


@pytest.fixture(scope="session")
def new() -> Build:
    """Return the build of this tree."""
    build = new_build()
    build.check_imported()
    return build


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return the build of the commit of the history; without it, the test is skipped."""
    return _of_history(tmp_path_factory, OLD)


@pytest.fixture(scope="session")
def with_claims(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Return the build of the history that gives GPUs by claim; without its commit, the test is skipped."""
    return _of_history(tmp_path_factory, WITH_CLAIMS)


def _of_history(tmp_path_factory: pytest.TempPathFactory, commit: str) -> Build:
    folder = tmp_path_factory.getbasetemp()
    try:
        build = old_build(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder, commit)
    except HistoryMissingError as error:
        pytest.skip(str(error))
    build.check_imported()
    return build

"""What several tests of `make gpu` need."""

import pytest

from real_gpus.containers import why_no_mounts


@pytest.fixture
def needs_mounts() -> None:
    """Skip where the containers of a test cannot have mounts."""
    if (reason := why_no_mounts()) is not None:
        pytest.skip(reason)

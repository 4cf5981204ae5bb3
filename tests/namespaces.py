"""Programs in namespaces of their own, as containers have them."""

import shutil
import subprocess

import pytest


def unshared(*namespaces: str) -> tuple[str, ...]:
    """Return the command that runs another one in namespaces of its own; skip the test where nobody may make them."""
    command = ("unshare", "--user", "--map-root-user", *namespaces)
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets nobody make namespaces")
    return command

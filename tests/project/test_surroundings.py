"""Tests pass wherever a run is started from: with nohup, in the background of a script, behind a proxy."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def passes(*tests: str, before: str = "", **variables: str) -> None:
    """Run tests in a shell of their own, after a command and with more variables; fails with what they print."""
    command = f'{before} exec "$@"'
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    arguments = ["env", *(f"{name}={value}" for name, value in variables.items()), *pytest_]
    ended = subprocess.run(
        ["/bin/sh", "-c", command, "sh", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("ignored", ["HUP", "INT QUIT"])
def test_signals_that_the_run_ignores_are_not_ignored_by_what_tests_start(ignored: str) -> None:
    """`nohup make test &` is as good as any other run."""
    passes("tests/process/test_main.py", "-k", "sighup or told_to_end", before=f"trap '' {ignored};")


def test_a_proxy_of_the_network_is_not_asked_for_servers_of_tests() -> None:
    """A machine that reaches the network through a proxy, with no exception for itself, runs all tests."""
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9")
    passes("tests/unit/kube/test_client.py", **proxies, NO_PROXY="", no_proxy="")

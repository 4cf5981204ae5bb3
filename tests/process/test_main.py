"""Tests of `gpushare_plugin.__main__`, the way in, in processes of their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE

AFTER_A_COMMAND = """
import gc, sys
from gpushare_plugin.__main__ import main
sys.argv = ["gpushare", "version"]
try:
    main()
except SystemExit as end:
    assert not end.code
"""


def after_a_command(check: str) -> None:
    """Run a subcommand, and then `check`."""
    subprocess.run([sys.executable, "-c", AFTER_A_COMMAND + check], check=True)


PACKAGES = ("gpushare_plugin", "kubernetes", "pydantic", "rich", "structlog")

NOT_IMPORTED = f"""
pretended = [
    name
    for name, module in sys.modules.items()
    if name.partition(".")[0] in {PACKAGES} and not getattr(module, "__spec__", None)
]
assert not pretended, pretended
"""


def test_every_module_that_a_command_leaves_behind_was_imported() -> None:
    """No module is empty, and none is kept from being imported."""
    code = AFTER_A_COMMAND.replace('"version"', '"inspect", "--help"') + NOT_IMPORTED
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_plugin_of_pydantic_is_loaded(tmp_path: Path) -> None:
    """To look for them takes time with every package that is installed, and a stranger's would run in the daemon."""
    (tmp_path / "stranger.py").write_text("import os; os._exit(9)")
    package = tmp_path / "stranger-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[pydantic]\nstranger = stranger:plugin\n")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "gpushare_plugin", "schema"]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_garbage_is_not_looked_for_among_what_was_imported() -> None:
    """Imports are set aside; from then on garbage is collected as in any process."""
    after_a_command("assert gc.isenabled(); assert gc.get_freeze_count()")


SIGNAL_WHILE_IMPORTING = """
import os, signal, sys
class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            for number in NUMBERS:
                os.kill(os.getpid(), number)
sys.meta_path.insert(0, Signals())
"""


def with_signals(numbers: list[signal.Signals], *arguments: str) -> int:
    """Run a command that is sent these signals while it imports its modules; return its exit status."""
    script = SIGNAL_WHILE_IMPORTING.replace("NUMBERS", str([int(number) for number in numbers]))
    script += f"sys.argv = {['gpushare', *arguments]}\nfrom gpushare_plugin.__main__ import main\nmain()"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode


@pytest.mark.parametrize(
    ("command", "status"),
    [*((each, 0) for each in ("run", "mps", "mig", "extender", "partition")), ("list", -signal.SIGHUP)],
)
def test_a_daemon_that_is_being_imported_survives_sighup(command: str, status: int) -> None:
    """A daemon that is told to read its settings before it can goes on; a command at a terminal hangs up."""
    assert with_signals([signal.SIGHUP], command, "--help") == status


@pytest.mark.parametrize("command", ["run", "list"])
def test_signals_that_mean_nothing_do_nothing_while_importing(command: str) -> None:
    """A signal that no program knows is no reason to end in the middle of a start."""
    assert with_signals([signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM], command, "--help") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_process_told_to_end_while_importing_ends_well(number: signal.Signals) -> None:
    """However often it is told to, the exit status is 0."""
    assert with_signals([number, number], "run", "--no-such-option") == 0


SIGNAL_IN_A_CALLBACK = """
import os, signal, sys, weakref
class Gone: pass
class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == "gpushare_plugin.cli.node_daemon":
            gone = Gone()
            reference = weakref.ref(gone, lambda _: os.kill(os.getpid(), signal.SIGTERM))
            del gone
sys.meta_path.insert(0, Signals())
"""


def test_a_daemon_told_to_end_while_importing_prints_nothing(tmp_path: Path) -> None:
    """The exit status is 0, also where the interpreter would lose an exception."""
    arguments = ["gpushare", "run", "--device-plugin-path", str(tmp_path)]
    script = f"{SIGNAL_IN_A_CALLBACK}\nsys.argv = {arguments}\nfrom gpushare_plugin.__main__ import main\nmain()"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


BEGUN_BEFORE_THE_IMPORTS = """
import sys
class Look:
    def find_spec(self, name, path=None, target=None):
        if name == "structlog":
            print("pynvml" in sys.modules)
            raise SystemExit
sys.meta_path.insert(0, Look())
"""


@pytest.mark.parametrize(
    ("arguments", "begun"),
    [(["run"], True), (["run", "--simulate", "gpus.yaml"], False), (["mps"], False), (["list"], False)],
)
def test_nvml_is_begun_before_the_daemon_is_imported(arguments: list[str], begun: bool) -> None:  # noqa: FBT001 - what is expected
    """`run` begins to initialise NVML before the imports that take long, once its options are read; others never do."""
    script = f"{BEGUN_BEFORE_THE_IMPORTS}\nsys.argv = {['gpushare', *arguments]}\n"
    script += "from gpushare_plugin.__main__ import main\nmain()"
    environment = {name: value for name, value in os.environ.items() if name != "SIMULATE"}
    printed = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout == f"{begun}\n"

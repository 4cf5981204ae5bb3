"""Tests of `gpushare_plugin.__main__`, the way in, in processes of their own."""

import subprocess
import sys

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


def test_rich_is_imported_only_by_who_draws_with_it() -> None:
    """The daemon, which draws nothing, does not pay for it; who asks for it afterwards gets it."""
    after_a_command("assert not {name for name in sys.modules if name.split('.')[0] == 'rich'}")
    after_a_command("import rich.table; assert rich.table.Table")


def test_garbage_is_looked_for_but_not_among_what_was_imported() -> None:
    """Imports are set aside; from then on garbage is collected as in any process."""
    after_a_command("assert gc.isenabled(); assert gc.get_freeze_count()")

"""`kubectl_complete-gpushare`: what completes `kubectl gpushare …`, in the words of kubectl.

Source: kubectl, `pkg/cmd/plugin_completion.go`: from Kubernetes 1.26 on, kubectl runs the program with the typed words.
The program prints one completion per line, with a description after a tab, and last a directive of cobra: `:0` lets the
shell complete files, `:4` does not.
"""

import sys

import click
from click.shell_completion import ShellComplete

from gpushare_plugin.cli.main import commands

_FILES, _NO_FILES = ":0", ":4"


def main() -> None:
    """Print the completions of the arguments of this program, of which the last one is not finished."""
    *before, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(commands, {}, "gpushare", "").get_completions(before, incomplete)
    for each in found:
        if each.type == "plain":
            click.echo("\t".join(filter(None, (each.value, each.help))))
    click.echo(_FILES if any(each.type != "plain" for each in found) else _NO_FILES)

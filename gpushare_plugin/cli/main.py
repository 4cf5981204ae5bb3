"""The `gpushare` command: imports only the command that runs; the only place that ends the process."""

import errno
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from gpushare_plugin import __version__
from gpushare_plugin.cli.output import exit_without_output, open_missing_streams, warn, write_utf8
from gpushare_plugin.foundation.errors import ConfigError, GpushareError

COMMANDS = {
    "check-config": "Validate configs and show what a node would advertise.",
    "cleanup": "Remove what gpushare wrote to Nodes.",
    "completion": "Print a script that completes commands in a shell.",
    "demo": "Show sample pods that share four simulated GPUs.",
    "explain": "Explain why a pod gets no GPU, or why it has the one it has.",
    "extender": "Place pods by GPU for kube-scheduler until SIGTERM.",
    "inspect": "Show the GPUs of a cluster and the pods that have them.",
    "list": "List this node's GPUs and the pods that use them.",
    "mig": "Make and destroy MIG instances until SIGTERM.",
    "mps": "Run the CUDA MPS control daemon until SIGTERM.",
    "partition": "Decide which GPU slices nodes make until SIGTERM.",
    "run": "Serve this node's GPUs to the kubelet until SIGTERM.",
    "schema": "Print the JSON Schema of the config.",
    "version": "Print the version.",
}
"""Short help by command; a command is `command` in the module of its name in `commands`, see `FOLDERS`."""

FOLDERS = {
    "cluster": ("cleanup", "explain", "extender", "inspect", "partition"),
    "config": ("check-config", "schema"),
    "node": ("list", "mig", "mps", "run"),
}
"""The folders of `commands`; commands that are in none are in `commands` itself."""


class LazyGroup(click.Group):
    """A group that imports a command only when it runs; until then name and short help are known."""

    def __init__(self, *, short_helps: Mapping[str, str], **attributes: Any) -> None:
        """Have a command for each of the `short_helps`; `attributes` are those of any click group."""
        # Enough for the help of the group, for completion and for the nearest name to a wrong one.
        names = {name: click.Command(name, short_help=text) for name, text in short_helps.items()}
        super().__init__(commands=names, **attributes)

    def load(self, name: str) -> click.Command:
        """Import the command of this name and return it."""
        folder = next((f"{folder}." for folder, names in FOLDERS.items() if name in names), "")
        module = f"gpushare_plugin.cli.commands.{folder}{name.replace('-', '_')}"
        command: click.Command = import_module(module).command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with, import it, and return its name, it, and its own arguments."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, self.load(name) if name and found else None, rest


@click.group(
    cls=LazyGroup,
    short_helps=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, message="gpushare %(version)s")
@click.pass_obj
def commands(imported: Callable[[], None] | None) -> None:
    """Share the GPUs of a Kubernetes node: by memory, by time slices, or whole."""
    # click has found the command by now, and has not yet read its options.
    if imported is not None:
        imported()


_OUTPUT_LOST = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC}
"""Errors of a standard output that is full or closed; a reader that ended (EPIPE) is click's to handle."""


def main(imported: Callable[[], None]) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage; `list` has 3 besides.

    `imported` is called once what the command needs has been imported, before it begins; not if there is no command.
    """
    # gRPC prints lines of its own format beside our log, which has the same content.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    open_missing_streams()
    write_utf8()
    try:
        commands(prog_name="gpushare", obj=imported)
    except ConfigError as error:
        warn(f"gpushare: {error.what} cannot be used:")
        for line in error.lines:
            warn(f"  {line}")
        sys.exit(1)
    except GpushareError as error:
        warn(f"gpushare: {error}")
        sys.exit(1)
    except OSError as error:
        if error.errno not in _OUTPUT_LOST:
            raise
        exit_without_output(error)

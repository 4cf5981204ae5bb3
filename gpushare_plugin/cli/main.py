"""The `gpushare` command: imports only the command that runs, and turns the errors of commands into an exit status."""

import errno
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import click

from gpushare_plugin.base.errors import ConfigError, GpushareError
from gpushare_plugin.base.version import __version__
from gpushare_plugin.cli.output import exit_without_output, open_missing_streams, warn, write_utf8

COMMANDS = {
    "check-config": "Validate configs and show what a node would advertise.",
    "cleanup": "Remove what gpushare wrote to Nodes.",
    "completion": "Print a script that completes commands in a shell.",
    "debug": "Have a running daemon log more, or write its stacks.",
    "demo": "Show sample pods that share four simulated GPUs.",
    "doctor": "Say what is wrong on this node, and what to do.",
    "driver-limits": "Set driver limits for containers until SIGTERM.",
    "explain": "Explain why a pod gets no GPU, or why it has the one it has.",
    "extender": "Place pods by GPU for kube-scheduler until SIGTERM.",
    "inspect": "Show the GPUs of a cluster and the pods that have them.",
    "list": "List this node's GPUs and the pods that use them.",
    "mig": "Make and destroy MIG instances until SIGTERM.",
    "mps": "Run the CUDA MPS control daemon until SIGTERM.",
    "partition": "Decide which GPU slices nodes make until SIGTERM.",
    "run": "Serve this node's GPUs to the kubelet until SIGTERM.",
    "schema": "Print the JSON Schema of the config.",
    "simulate": "Compare placement policies on the pods of a trace or a cluster.",
    "version": "Print the version.",
    "web": "Show every GPU of a cluster in the browser.",
}
"""The short help of every command. A command is `command` in the module of its name below `commands`, see FOLDERS."""

DAEMONS = ("run", "mps", "mig", "driver-limits", "extender", "partition")
"""The commands that run until a signal."""

SECTIONS = {
    "Commands for people": (
        "inspect",
        "explain",
        "web",
        "list",
        "doctor",
        "check-config",
        "schema",
        "simulate",
        "demo",
        "cleanup",
        "debug",
        "completion",
        "version",
    ),
    "Programs of a cluster": DAEMONS,
}
"""The commands in the order of the help."""

FOLDERS = {
    "cluster": ("cleanup", "explain", "extender", "inspect", "partition", "simulate", "web"),
    "config": ("check-config", "schema"),
    "node": ("doctor", "driver-limits", "list", "mig", "mps", "run"),
}
"""The commands in the folders of `commands`; all other commands are in `commands` itself."""


class LazyGroup(click.Group):
    """A click group that imports a command only when the command runs, and knows names and short helps before."""

    def __init__(self, *, short_helps: Mapping[str, str], **attributes: Any) -> None:
        """Make a command for every name in `short_helps`; `attributes` are the arguments of any click group."""
        # Enough for the help of the group, for completion, and for the nearest name to a wrong name.
        names = {name: click.Command(name, short_help=text) for name, text in short_helps.items()}
        super().__init__(commands=names, **attributes)

    def load(self, name: str) -> click.Command:
        """Import the command `name` and return the command."""
        folder = next((f"{folder}." for folder, names in FOLDERS.items() if name in names), "")
        module = f"gpushare_plugin.cli.commands.{folder}{name.replace('-', '_')}"
        command: click.Command = import_module(module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as in click
        """Write the commands in their sections."""
        for heading, names in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].short_help or "") for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Import the command that `args` begin with, and return the name, the command, and the command's arguments."""
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
"""Errors of a full or closed standard output; click handles a reader that has ended (EPIPE)."""


def main(imported: Callable[[], None]) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage; `list` and `doctor` also exit with 3.

    `imported` is called after the imports of the command and before the command begins; never without a command.
    """
    # gRPC would print lines in its own format beside our log, and our log has the same content.
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

"""`gpushare doctor`: whether this node is right for gpushare, and what to change."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from gpushare_plugin.base.errors import ConfigError, GpushareError
from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.cli.inputs import chosen_configs, with_config_options
from gpushare_plugin.cli.options import A_PATH, driver_limits_root_option, node_name_option, pod_resources_socket_option
from gpushare_plugin.cli.output import output_style, show, show_json
from gpushare_plugin.cli.setting_options import with_setting_options
from gpushare_plugin.config.loading.load import NO_FILE, Loaded
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.doctor.bundle import write_bundle
from gpushare_plugin.doctor.examination import judged, read_node
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import CHECK_BY_CDI, needs_of
from gpushare_plugin.doctor.words import lines_of
from gpushare_plugin.gpus.nvml.gpus import NvmlSource
from gpushare_plugin.node.configuration import planned
from gpushare_plugin.observe.parts import encode

NODE_IS_WRONG = 3
"""Exit status for a node on which a part is wrong."""
_MOUNTED = Path("/host")
"""Where the chart's Job mounts the root of the node."""

_OF_GPUS = frozenset({"devices", "migStrategy"})
"""The keys of the config that name GPUs of a node."""
_NOT_AGAIN = frozenset({"--device-list-strategy", "--bundle"})
"""The options that a command to judge the node by CDI does not take over: an archive is not written twice."""


class _Remembering(click.Command):
    """A command that knows the words it was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, and keep them as `_Remembering` in the context's `meta`."""
        ctx.meta[_Remembering.__name__] = tuple(args)
        return super().parse_args(ctx, args)


@click.command("doctor", cls=_Remembering, short_help="Say what is wrong on this node, and what to do.")
@click.option(
    "--root",
    metavar="DIRECTORY",
    type=A_PATH,
    help="Root of the node's file system. Default: /host if present, else /.",
)
@with_config_options
@with_setting_options
@node_name_option
@pod_resources_socket_option
@driver_limits_root_option
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.option(
    "--bundle",
    metavar="FILE",
    type=A_PATH,
    help="Also write an archive (.tar.gz) for a report, without names and secrets.",
)
@click.pass_context
def command(context: click.Context, /, root: Path | None, output: str, bundle: Path | None, **options: Any) -> None:
    """Say what is wrong on this node, from the driver to the kubelet, and what to do.

    Needs no cluster, runs no program of the node, and changes nothing. Run the command on the node as root, or in a
    pod with the root of the node at /host. The config, chosen as for the daemon, decides what the node needs.

    Exit status 3: something is wrong.
    """
    configure_log("console", "error")
    host = HostRoot(_root(root))
    loaded = chosen_configs(context, options).load()
    if loaded.config is None:
        raise ConfigError(loaded.lines(loaded.problems))
    source = loaded.places.root.place.source
    file = None if source == NO_FILE else source
    check = shlex.join((*CHECK_BY_CDI.split(), *_taken_over(context.meta[_Remembering.__name__])))
    needs = needs_of(loaded.config, file, options["pod_resources_socket"], options["driver_limits_root"], check)
    facts = read_node(host, needs, NvmlSource, partial(_misfits, loaded))
    node = options["node_name"] or ""
    report = judged(facts, host, node or "NODE")
    if output == "json":
        show_json(encode(report, indent=2))
    else:
        style = output_style()
        show(lines_of(report, style.width if sys.stdout.isatty() else None), style)
    # Last, so that an archive that cannot be written hides no report.
    if bundle is not None:
        size = write_bundle(bundle, facts, report, (node, host.line("/etc/hostname")))
        click.echo(
            f"\nWrote {bundle} ({size} bytes), without names of nodes, pods and people, and without secrets: read it "
            "before you send it.",
            err=output == "json",
        )
    if report.wrong:
        context.exit(NODE_IS_WRONG)


def _misfits(loaded: Loaded, inventory: Inventory) -> list[str]:
    """Return which GPUs of the config the node does not have as the config says, as the daemon would reject the config.

    Other parts of the report judge the isolations.
    """
    problems = planned(loaded, loaded.effective, inventory).problems if loaded.effective else ()
    return loaded.lines([each for each in problems if each.path[-1] in _OF_GPUS])


def _taken_over(words: Sequence[str]) -> Iterator[str]:
    """Yield the words of the command line without the options of `_NOT_AGAIN` and their values."""
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if name not in _NOT_AGAIN:
            yield word
        elif not value:
            next(rest, None)


def _root(given: Path | None) -> Path:
    """Return the root of the node's file system; raise GpushareError if there is no such directory."""
    root = given or (_MOUNTED if _MOUNTED.is_dir() else Path("/"))
    if not os.access(root, os.R_OK | os.X_OK) or not root.is_dir():
        raise GpushareError(f"{root} is not a directory that can be read; expected the root of the node's file system")
    return root.absolute()

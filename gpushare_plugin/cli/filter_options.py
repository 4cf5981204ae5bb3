"""The options of `gpushare inspect` that choose what is shown of a cluster, and in which order."""

from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import click

from gpushare_plugin.cli import completing
from gpushare_plugin.cli.options import Command
from gpushare_plugin.observe.cluster.filters import Filters, FreeAmount, Order

_PATTERN = frozenset("*?[")
"""The characters of which a pattern has one, and the name of a node has none."""


def filter_options(command: Command) -> Command:
    """Add the options to a command; `chosen` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _amount(_context: click.Context, _option: click.Parameter, text: str | None) -> FreeAmount | None:
    """Return the amount in a text; raise click.BadParameter for a text that has none."""
    try:
        return None if text is None else FreeAmount.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


_OPTIONS = (
    click.option(
        "--node",
        "node_options",
        metavar="NODE",
        multiple=True,
        shell_complete=completing.nodes,
        help="Show this node, or nodes whose names match a pattern such as 'gpu-*'.",
    ),
    click.option(
        "-n",
        "--namespace",
        "namespaces",
        metavar="NAMESPACE",
        multiple=True,
        shell_complete=completing.namespaces,
        help="Show pods and claims of this namespace, and their GPUs.",
    ),
    click.option(
        "--resource", "resources", metavar="NAME", multiple=True, help="Show this resource, such as aliyun.com/gpu-mem."
    ),
    click.option(
        "--model",
        "models",
        metavar="WORDS",
        multiple=True,
        help="Show GPUs with these words in the product name, such as A100.",
    ),
    click.option(
        "--free",
        metavar="AMOUNT",
        callback=_amount,
        help="Show nodes with a GPU that has so much free: units, or memory such as 10GiB.",
    ),
    click.option("-l", "--selector", default="", metavar="LABELS", help="Show nodes with these labels: zone=a,!old."),
    click.option(
        "--sort",
        "order",
        type=click.Choice(get_args(Order)),
        default="name",
        help="Order of nodes: by name, most free on a GPU first, most held first, with a state first.",
    ),
)


class Chosen(NamedTuple):
    """What is to be shown."""

    nodes: tuple[str, ...]
    """The names of the nodes to read; empty for all."""
    labels: str
    """The label selector of the nodes to read; empty for all."""
    filters: Filters
    """What is shown of what is read."""


def chosen(arguments: tuple[str, ...], options: Mapping[str, Any]) -> Chosen:
    """Return what the names and the options of a command line choose; all nodes are read where a name is a pattern."""
    names = tuple(dict.fromkeys((*arguments, *options["node_options"])))
    patterns = any(not _PATTERN.isdisjoint(name) for name in names)
    filters = Filters(names if patterns else (), *(options[field] for field in Filters._fields[1:]))
    return Chosen(() if patterns else names, options["selector"], filters)

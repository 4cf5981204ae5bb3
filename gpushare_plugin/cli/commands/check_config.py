"""`gpushare check-config`: validates a config, shows its effective settings, and what it changes."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from gpushare_plugin.cli.inputs import gpu_source
from gpushare_plugin.cli.logs import configure_log
from gpushare_plugin.cli.options import A_PATH, simulate_option
from gpushare_plugin.cli.output import warn
from gpushare_plugin.cli.setting_options import overrides, with_setting_options
from gpushare_plugin.config.difference import difference
from gpushare_plugin.config.loading.load import Loaded, dump, load
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.foundation.errors import ConfigError, NoGpuLibraryError
from gpushare_plugin.model.gpu import Inventory
from gpushare_plugin.programs.node.configuration import decide
from gpushare_plugin.programs.node.daemon import look
from gpushare_plugin.sharing.plan import Plan


@click.command("check-config", short_help="Validate a config and show the effective settings.")
@click.argument("file", type=A_PATH)
@simulate_option
@click.option(
    "--against",
    metavar="OLD",
    type=A_PATH,
    help="Show only what FILE changes in the config and in the advertised units, compared with OLD.",
)
@with_setting_options
@click.pass_context
def command(
    context: click.Context, /, file: Path, simulate: Path | None, against: Path | None, **_settings: Any
) -> None:
    """Validate a config FILE; show the effective settings and, on a node with GPUs, what would be advertised."""
    configure_log("console", "error")
    loaded, config = _loaded(file, context)
    old = None if against is None else _loaded(against, context)
    inventory = _inventory(simulate, loaded)
    decided = None if inventory is None else decide(loaded, inventory)
    if old is not None:
        old_loaded, old_config = old
        old_decided = None if inventory is None else decide(old_loaded, inventory)
        _print_changes("the config", difference(old_config, config))
        if decided is not None and old_decided is not None:
            _print_changes("the units advertised on this node", list(_unit_changes(old_decided, decided)))
    else:
        click.echo(dump(config), nl=False)
        if inventory is not None and decided is not None:
            _print_resources(inventory, decided)
    for notice in (*loaded.notices, *(decided.notices if decided else ())):
        warn(f"# Warning: {notice}")


def _loaded(file: Path, context: click.Context) -> tuple[Loaded, Config]:
    """Load a file with the options of `context` over it; raises ConfigError with every mistake."""
    loaded = load(file, overrides(context))
    if loaded.config is None:
        raise ConfigError(loaded.lines(loaded.problems))
    return loaded, loaded.config


def _inventory(simulate: Path | None, loaded: Loaded) -> Inventory | None:
    """Return the GPUs, None where NVML is not available."""
    try:
        return asyncio.run(look(gpu_source(simulate, None, loaded)))
    except NoGpuLibraryError as error:
        warn(f"# Checked the file only: {error}")
        return None


def _print_resources(inventory: Inventory, decided: Plan) -> None:
    click.echo(f"# The {len(inventory.cards)} GPUs of this node would be advertised as:")
    for resource in decided.resources:
        on = ", ".join(gpu.label for gpu in resource.gpus.values())
        click.echo(f"#   {resource.name}: {len(resource.units)} on GPU {on}")


def _print_changes(what: str, lines: list[str]) -> None:
    click.echo(f"# Changes in {what}:" if lines else f"# No changes in {what}.")
    for line in lines:
        click.echo(line)


def _unit_changes(old: Plan, new: Plan) -> Iterator[str]:
    before, after = ({each.name: len(each.units) for each in decided.resources} for decided in (old, new))
    for name in before | after:
        match before.get(name), after.get(name):
            case None, now:
                yield f"{name}: added, {now}"
            case was, None:
                yield f"{name}: removed, was {was}"
            case was, now if was != now:
                yield f"{name}: {was} -> {now}"

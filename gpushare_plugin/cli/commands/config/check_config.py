"""`gpushare check-config`: the mistakes in configs, the offer of a node with a config, and the changes to a config."""

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from gpushare_plugin.base.errors import ConfigError, NoGpuLibraryError
from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.base.text import in_words, some_of
from gpushare_plugin.cli.claim_devices import device_changes, driver_change
from gpushare_plugin.cli.inputs import HostLook, gpu_source
from gpushare_plugin.cli.options import (
    A_PATH,
    cdi_spec_dirs_option,
    cgroup_root_option,
    driver_limits_agent_option,
    simulate_option,
)
from gpushare_plugin.cli.output import show, show_json, warn
from gpushare_plugin.cli.setting_options import overrides, with_setting_options
from gpushare_plugin.cli.verdicts import ConfigVerdict, summary
from gpushare_plugin.config.difference import difference
from gpushare_plugin.config.loading.content import LARGEST_FILE
from gpushare_plugin.config.loading.load import dump
from gpushare_plugin.config.loading.manifests import FoundConfig
from gpushare_plugin.config.schema.places import Finding, SourcePlace
from gpushare_plugin.config.schema.spelling import printable
from gpushare_plugin.config.sources.files import (
    DirectorySearch,
    configs_in_bytes,
    configs_in_directory,
    configs_in_file,
)
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.node.daemon import look

_STANDARD_INPUT = Path("-")
_STANDARD_INPUT_NAME = "stdin"
_FILES_TO_NAME = 10
_JSON_VERSION = 1
"""The version of the JSON output, which grows when a key goes or changes its meaning."""


@click.command("check-config", short_help="Validate configs and show what a node would advertise.")
@click.argument("files", metavar="FILE...", type=A_PATH, nargs=-1, required=True)
@simulate_option
@click.option("--show", is_flag=True, help="Print the effective settings, and the verdict on standard error.")
@click.option("-q", "--quiet", is_flag=True, help="Print mistakes only.")
@click.option("--strict", is_flag=True, help="Warnings fail, too.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
@click.option(
    "--against",
    metavar="OLD",
    type=A_PATH,
    help="Show only changes of config and units, from OLD to FILE.",
)
@cdi_spec_dirs_option
@cgroup_root_option
@driver_limits_agent_option
@with_setting_options
@click.pass_context
def command(context: click.Context, /, files: tuple[Path, ...], **options: Any) -> None:
    """Validate configs and, on a node with GPUs, show what would be advertised.

    FILE is a config, a ConfigMap, Helm values, a directory, or - for standard input. Of Helm values, only configs are
    checked.
    """
    configure_log("console", "error")
    against = options["against"]
    if against and (options["show"] or options["quiet"] or options["output"] == "json"):
        raise click.UsageError("--against prints changes only: leave out --show, --quiet and --output")
    values = overrides(context)
    if [*files, against].count(_STANDARD_INPUT) > 1:
        raise click.UsageError("standard input (-) is given twice, but can be read only once")
    search, old = _search(files), _search([against] if against else [])
    verdicts, others = ([ConfigVerdict.on(each, values) for each in some.configs] for some in (search, old))
    inventory = _inventory(options["simulate"], [*verdicts, *others], quiet=options["quiet"])
    if inventory is not None:
        host = HostLook(options, inventory)
        verdicts, others = (
            [each.with_gpus(inventory, host.facts(each.loaded)) for each in some] for some in (verdicts, others)
        )
    wrong = any(verdict.mistakes for verdict in [*verdicts, *others])
    if against and not wrong:
        _print_changes(verdicts, others)
    else:
        _print([*verdicts, *others], inventory, options)
    if search.passed_over and (options["strict"] or not options["quiet"]):
        warn(_passed_over(search.passed_over))
    if wrong or (options["strict"] and (search.passed_over or any(verdict.warnings for verdict in verdicts))):
        context.exit(1)


def _search(files: Sequence[Path]) -> DirectorySearch:
    whole = DirectorySearch()
    for file in files:
        found = _found(file)
        whole.configs += found.configs
        whole.passed_over += found.passed_over
    return whole


def _found(file: Path) -> DirectorySearch:
    if file == _STANDARD_INPUT:
        return DirectorySearch(_configs_in_standard_input())
    if os.path.isdir(file):  # noqa: PTH112 - Path.is_dir raises where a directory above cannot be read
        return configs_in_directory(file)
    return DirectorySearch(configs_in_file(file))


def _passed_over(files: Sequence[Path]) -> str:
    names = some_of([printable(str(file)) for file in files], _FILES_TO_NAME)
    return f"{len(files)} {'file' if len(files) == 1 else 'files'} passed over, not recognised as a config: {names}"


def _configs_in_standard_input() -> list[FoundConfig]:
    try:
        return configs_in_bytes(sys.stdin.buffer.read(LARGEST_FILE + 1), _STANDARD_INPUT_NAME)
    except OSError as error:
        finding = Finding(SourcePlace(_STANDARD_INPUT_NAME), f"cannot be read: {in_words(error)}")
        return [FoundConfig(_STANDARD_INPUT_NAME, "", None, [finding])]


def _inventory(simulate: Path | None, verdicts: Sequence[ConfigVerdict], *, quiet: bool) -> Inventory | None:
    """Return the GPUs; None where NVML is not available, or where no config is valid and no GPUs are simulated.

    Raises ConfigError for mistakes in the file `simulate`, after printing the mistakes in the configs.
    """
    usable = [verdict.loaded for verdict in verdicts if verdict.loaded.config]
    if simulate is None and not usable:
        return None
    try:
        return asyncio.run(look(gpu_source(simulate, None, (usable or [verdicts[0].loaded])[0])))
    except ConfigError:
        for line in _quiet_lines(verdicts, strict=False):
            warn(line)
        raise
    except NoGpuLibraryError as error:
        if not quiet:
            warn("No GPU here: only the file was checked; add --simulate FILE to see resources.")
            reason, _, _ = str(error).partition(". ")
            warn(f"  ({reason})")
        return None


def _print(verdicts: Sequence[ConfigVerdict], inventory: Inventory | None, options: dict[str, Any]) -> None:
    if options["output"] == "json":
        configs = [verdict.data(settings=options["show"]) for verdict in verdicts]
        gpus = None if inventory is None else len(inventory.cards)
        show_json(
            json.dumps({"version": _JSON_VERSION, "gpus": gpus, "configs": configs}, indent=2, ensure_ascii=False)
        )
        return
    which = _which(inventory, options["simulate"])
    lines = _quiet_lines(verdicts, strict=options["strict"]) if options["quiet"] else _lines(verdicts, which)
    for line in lines:
        show([line], error=options["show"])
    if options["show"]:
        shown = [(str(each.found), each.loaded.config) for each in verdicts if not each.mistakes and each.loaded.config]
        heads = [f"# {name}\n" if len(shown) > 1 else "" for name, _config in shown]
        texts = [f"{head}{dump(config)}" for head, (_name, config) in zip(heads, shown, strict=True)]
        click.echo("---\n".join(texts), nl=False)


def _quiet_lines(verdicts: Sequence[ConfigVerdict], *, strict: bool) -> Iterator[str]:
    for verdict in verdicts:
        yield from verdict.mistakes
        yield from verdict.warning_lines if strict else ()


def _lines(verdicts: Sequence[ConfigVerdict], gpus: str | None) -> Iterator[str]:
    for verdict in verdicts:
        yield from verdict.lines(gpus)
    if len(verdicts) > 1:
        yield summary(verdicts)


def _which(inventory: Inventory | None, simulate: Path | None) -> str | None:
    """Return the name, in words, of the GPUs used for the check; None without GPUs."""
    if inventory is None:
        return None
    count = len(inventory.cards)
    gpus = "GPU" if count == 1 else f"{count} GPUs"
    return f"the {gpus} of {'this node' if simulate is None else simulate}"


def _print_changes(verdicts: Sequence[ConfigVerdict], others: Sequence[ConfigVerdict]) -> None:
    """Print the changes from the config in `others` to the config in `verdicts`; both configs are valid."""
    verdicts, others = ([each for each in some if not each.found.is_elsewhere] for some in (verdicts, others))
    if len(verdicts) != 1 or len(others) != 1:
        raise click.UsageError(f"--against compares two configs; found {len(verdicts)} in FILE, {len(others)} in OLD")
    (new,), (old,) = verdicts, others
    if old.loaded.config is not None and new.loaded.config is not None:
        _print_section("the config", difference(old.loaded.config, new.loaded.config))
    if old.plan is not None and new.plan is not None:
        _print_section("the units advertised on this node", list(_unit_changes(old, new)))
        if old.devices or new.devices:
            changes = (*driver_change(old.driver, new.driver), *device_changes(old.devices, new.devices))
            _print_section("the GPUs given by claim on this node", list(changes))
    for line in new.warning_lines:
        warn(line)


def _print_section(what: str, lines: list[str]) -> None:
    show([f"# Changes in {what}:" if lines else f"# No changes in {what}.", *lines])


def _unit_changes(old: ConfigVerdict, new: ConfigVerdict) -> Iterator[str]:
    before, after = ({each.name: len(each.units) for each in verdict.resources} for verdict in (old, new))
    for name in before | after:
        match before.get(name), after.get(name):
            case None, now:
                yield f"{name}: added, {now}"
            case was, None:
                yield f"{name}: removed, was {was}"
            case was, now if was != now:
                yield f"{name}: {was} -> {now}"

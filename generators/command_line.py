"""Makes `docs/command-line.md` from the commands themselves; `python -m generators.command_line` writes it."""

from collections.abc import Iterator
from pathlib import Path

import click

from gpushare_plugin.cli.main import COMMANDS, commands

PAGE = Path(__file__).parent.parent / "docs" / "command-line.md"

_HEAD = """\
# Command line

Made by `make generate` from the commands themselves. `python -m gpushare_plugin` is the same as `gpushare`. The command
line wins over the environment, and the environment over the config file. Exit status: 0 done, 1 failed, 2 wrong usage.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(line for name in sorted(COMMANDS) for line in _command(name))])


def _command(name: str) -> Iterator[str]:
    command = commands.load(name)
    # As a part of the whole: a command keeps the help option that it made for its first context.
    whole = click.Context(commands, info_name="gpushare", **commands.context_settings)
    context = click.Context(command, info_name=f"gpushare {name}", parent=whole)
    yield f"## `{' '.join([f'gpushare {name}', *command.collect_usage_pieces(context)])}`\n"
    yield f"{command.help}\n"
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if not options:
        return
    yield "| option | environment | meaning |"
    yield "|---|---|---|"
    for option in options:
        names = ", ".join(f"`{name}`" for name in option.opts)
        values = option.metavar or (
            f"[{'|'.join(option.type.choices)}]" if isinstance(option.type, click.Choice) else ""
        )
        variables = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
        default = f" Default: {option.default}." if option.show_default else ""
        cells = [f"{names} {_code(values)}", ", ".join(map(_code, variables)), f"{option.help}{default}"]
        yield f"| {' | '.join(cells)} |"
    yield ""


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page())

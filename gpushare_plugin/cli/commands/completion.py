"""`gpushare completion`: the script with which a shell completes commands, options and files."""

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

_HELP = """\
Print a script that completes commands, options and files in a shell.

\b
source <(gpushare completion bash)   # bash; also in ~/.bashrc
source <(gpushare completion zsh)    # zsh; also in ~/.zshrc, after compinit
gpushare completion fish | source    # fish; also in its config.fish
"""

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("completion", short_help="Print a script that completes commands in a shell.", help=_HELP)
@click.argument("shell", type=click.Choice([*_SHELLS]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the script of click for `shell`."""
    complete = _SHELLS[shell]
    whole = context.find_root()
    click.echo(complete(whole.command, {}, "gpushare", "_GPUSHARE_COMPLETE").source())

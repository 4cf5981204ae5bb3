"""`gpushare version`."""

import click

from gpushare_plugin.base.version import __version__


@click.command("version")
def command() -> None:
    """Print the version."""
    click.echo(f"gpushare {__version__}")

"""`gpushare schema`: the schema of the config, for editors and other tools."""

import json

import click

from gpushare_plugin.config.schema.json_schema import config_schema


@click.command("schema", short_help="Print the JSON Schema of the config.")
def command() -> None:
    """Print the JSON Schema (draft 7) of a config file, for editors and other tools."""
    click.echo(json.dumps(config_schema(), indent=2, ensure_ascii=False))

"""The JSON Schema of configs and of simulated GPUs inside the chart; `python -m generators.chart_schema` writes it.

With `values.schema.json` Helm checks the configs that are mappings. It does not look into texts: for those the
templates read the same schema from a file of the chart.
"""

import json
from typing import Any

from generators.pages import DOCUMENTS
from gpushare_plugin.config.schema.json_schema import config_schema, section_schema
from gpushare_plugin.core.policies import POLICIES
from gpushare_plugin.gpus.simulated import SimulatedNode

_CHART = DOCUMENTS.parent / "charts/gpushare"
VALUES_SCHEMA = _CHART / "values.schema.json"
CONFIG_SCHEMA = _CHART / "files/config.schema.json"


def values_schema() -> str:
    """Return the schema of the values, with those of configs and of simulated GPUs, and with the names of policies."""
    schema: dict[str, Any] = json.loads(VALUES_SCHEMA.read_text())
    schema["definitions"]["config"] = {key: part for key, part in config_schema().items() if key != "$schema"}
    schema["properties"]["simulate"] |= _simulated()
    for program in ("scheduler", "partitioning"):
        schema["properties"][program]["properties"]["placement"]["enum"] = list(POLICIES)
    return json.dumps(schema, indent=2) + "\n"


def _simulated() -> dict[str, Any]:
    """Return the schema of simulated GPUs, which may also be a text; the keys for mappings do not apply to that."""
    schema = section_schema(SimulatedNode)
    schema["properties"]["gpus"]["minItems"] = 1
    return {**schema, "type": ["object", "string", "null"], "minLength": 1}


def of_configs() -> str:
    """Return the schema of configs by itself, without what only people read."""
    return json.dumps(_without_words(config_schema()), indent=1) + "\n"


def _without_words(schema: dict[str, Any]) -> dict[str, Any]:
    words = {"$schema", "title", "description", "default"}
    kept = {key: part for key, part in schema.items() if key not in words}
    if "properties" in kept:
        kept["properties"] = {key: _without_words(part) for key, part in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = _without_words(kept["items"])
    return kept


if __name__ == "__main__":
    CONFIG_SCHEMA.parent.mkdir(exist_ok=True)
    VALUES_SCHEMA.write_text(values_schema())
    CONFIG_SCHEMA.write_text(of_configs())

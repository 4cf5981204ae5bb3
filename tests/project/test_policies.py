"""Tests that whatever names a policy names those of the one table, `gpushare_plugin.model.choice.policies`."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from gpushare_plugin.model.choice.policies import (
    DEFAULT_POLICY,
    DEFAULT_REPLICA_POLICY,
    POLICIES,
    REPLICA_POLICIES,
    PolicyName,
    ReplicaPolicyName,
)

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "charts/gpushare"


@pytest.mark.parametrize(
    ("names", "table", "default"),
    [(PolicyName, POLICIES, DEFAULT_POLICY), (ReplicaPolicyName, REPLICA_POLICIES, DEFAULT_REPLICA_POLICY)],
    ids=["policies", "policies for replicas"],
)
def test_types_and_tables_have_the_same_policies(names: object, table: dict[str, object], default: str) -> None:
    """Every name that a config can have stands in the table, and the default is one of the names."""
    assert get_args(names) == tuple(table)
    assert default in table


def test_the_schema_of_the_chart_has_the_policies() -> None:
    """Values of the chart take each policy of the table for the extender and the partitioner, and no other one."""
    properties: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())["properties"]
    for program in ("scheduler", "partitioning"):
        assert properties[program]["properties"]["placement"]["enum"] == list(POLICIES)
    assert [*REPLICA_POLICIES, None] == properties["sharedDevicesAllocationPolicy"]["enum"]


def test_the_chart_has_the_defaults_of_the_table() -> None:
    """Who changes no value gets the default policy."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["scheduler"]["placement"] == values["partitioning"]["placement"] == DEFAULT_POLICY


@pytest.mark.parametrize(
    ("file", "begin", "table"),
    [
        ("docs/cluster.md", "| `ack.node.gpu.placement` |", POLICIES),
        ("docs/cluster.md", "| `placement` |", POLICIES),
        ("docs/cluster.md", "| `resources` | how the node chooses GPUs", {**POLICIES, **REPLICA_POLICIES}),
        ("docs/scheduling.md", "| the pod | annotation `gpushare/placement`", POLICIES),
        ("docs/scheduling.md", "`binpack` takes the fullest GPU", POLICIES),
        ("charts/gpushare/values.yaml", "  # Where a pod goes if neither", POLICIES),
        ("charts/gpushare/values.yaml", "  # Which GPU a slice is made on if neither", POLICIES),
        ("charts/gpushare/values.yaml", "# Which GPU the next replica comes from", REPLICA_POLICIES),
    ],
)
def test_documents_name_every_policy(file: str, begin: str, table: dict[str, object]) -> None:
    """Where a document lists the policies, the list is whole."""
    (line,) = [each for each in (ROOT / file).read_text().splitlines() if each.startswith(begin)]
    assert [name for name in table if not re.search(rf"\b{name}\b", line)] == []

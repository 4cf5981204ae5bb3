"""Tests that each enumeration that people can write has one table, and that whoever lists the values lists all.

Where a value is added to a table, these tests fail for each place that does not have the value yet.
"""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from gpushare_plugin.config.directives import apply_labels
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.config.schema.isolations import IsolationName, MpsIsolationName, TimeSlicedIsolationName
from gpushare_plugin.config.schema.sections import Config, MemoryResource, Sharing, TimeSlicedResource
from gpushare_plugin.core.health import APPLICATION_XIDS, RESET_XIDS
from gpushare_plugin.core.policies import (
    DEFAULT_POLICY,
    DEFAULT_REPLICA_POLICY,
    NODE_POLICIES,
    POLICIES,
    REPLICA_POLICIES,
    PolicyName,
    ReplicaPolicyName,
)
from gpushare_plugin.core.snapshot import SharingMode
from gpushare_plugin.sharing.isolation.layer import Isolation, Limits, NodeMeans
from gpushare_plugin.sharing.isolation.mps import UnderMps
from gpushare_plugin.sharing.isolation.table import ISOLATIONS
from gpushare_plugin.sharing.ways.table import WAYS
from tests.nodes import a_gpu

ACK, NOS = "ack.node.gpu.schedule", "nos.nebuly.com/gpu-partitioning"

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "charts/gpushare"

NVIDIAS = {"version", "flags", "resources", "sharing", "imex"}
"""The sections of a config that NVIDIA's plugin has, too."""

MADE: dict[str, Isolation] = {name: make(Config(), Limits(), NodeMeans()) for name, make in ISOLATIONS.items()}
ENFORCING = {name: each for name, each in MADE.items() if each.layers}
"""The isolations that enforce something: all but `none`."""
COMPUTING = {name: each for name, each in MADE.items() if each.compute_variable(a_gpu(0)) is not None}
"""The isolations that limit compute, so that containers can request it."""
ON_SEVERAL = {name: each for name, each in MADE.items() if each.limits_several_gpus}
"""The isolations whose limits hold on several GPUs."""


@pytest.mark.parametrize(
    ("names", "table", "default"),
    [
        (PolicyName, POLICIES, DEFAULT_POLICY),
        (PolicyName, NODE_POLICIES, DEFAULT_POLICY),
        (ReplicaPolicyName, REPLICA_POLICIES, DEFAULT_REPLICA_POLICY),
    ],
    ids=["policies of a cluster", "policies of a node", "policies for replicas"],
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


def values_of(label: str, *, partitioning: bool) -> set[str]:
    """Return the values of a node label that requests a way of sharing, as the notice of an unknown one has them."""
    config = load(None).config
    assert config is not None
    _, (notice,) = apply_labels({label: "unknown"}, config, partitioning=partitioning)
    return set(notice.rpartition("expected one of ")[2].split(", "))


def test_every_isolation_of_the_config_stands_in_the_table() -> None:
    """An entry by memory can have each isolation, one by time slicing each without MPS, one under MPS each with MPS.

    There, `driver` is short for `driver+mps`.
    """
    of_memory, of_replicas, of_clients = map(
        set, map(get_args, (IsolationName, TimeSlicedIsolationName, MpsIsolationName))
    )
    assert of_memory == ISOLATIONS.keys()
    assert of_replicas == ISOLATIONS.keys() - {"mps", "driver+mps"}
    assert of_clients == {name for name, each in MADE.items() if isinstance(each.mode(a_gpu(0)), UnderMps)} | {"driver"}


def test_every_way_has_its_section_of_the_config() -> None:
    """Each way of sharing reads a section that exists; `test_every_case` has a case for each list of these sections."""
    sections = {vars(way)["section"][:2] for way in WAYS}
    named = {section[1] for section in sections if section[:1] == ("sharing",) and len(section) > 1}
    assert ("resources",) in sections
    assert named <= {field.alias or name for name, field in Sharing.model_fields.items()}


@pytest.mark.parametrize("label", [ACK, NOS])
def test_labels_mean_the_same_values_with_and_without_partitioning(label: str) -> None:
    """The option `--partitioning` changes what a value means, and adds none."""
    assert values_of(label, partitioning=False) == values_of(label, partitioning=True)


@pytest.mark.parametrize(
    ("file", "begin", "table"),
    [
        ("docs/isolation.md", "The key `isolation` is", ISOLATIONS),
        ("docs/isolation.md", "| | `none` | `mps` (protocol 2, the default) |", ISOLATIONS),
        ("docs/configuration.md", "      isolation: mps          #", ISOLATIONS),
        ("docs/configuration.md", "| `compute` | proportional, unlimited, requested, or", COMPUTING),
        ("docs/cluster.md", "`core_mem` offers `aliyun.com/gpu-core.percentage`", COMPUTING),
        ("docs/isolation.md", "- It needs `isolation:", COMPUTING),
        ("docs/isolation.md", "- `hami-core`, and `none`, admit such pods", ON_SEVERAL),
        ("docs/moving.md", "| `aliyun.com/gpu-core.percentage` |", COMPUTING),
        ("docs/usage.md", "| replicas with ", ENFORCING),
        ("README.md", "[isolation](docs/isolation.md) that you choose:", ENFORCING),
        ("docs/cluster.md", "| `mode`, `resource`, `units` |", dict.fromkeys(get_args(SharingMode))),
        ("docs/metrics.md", "| `gpushare_gpu_info` |", dict.fromkeys(get_args(SharingMode))),
        ("docs/cluster.md", "| `ack.node.gpu.placement` |", NODE_POLICIES),
        ("docs/cluster.md", "| `placement` |", NODE_POLICIES),
        ("docs/cluster.md", "| `resources` | how the node chooses GPUs", {**NODE_POLICIES, **REPLICA_POLICIES}),
        ("docs/configuration.md", "      placement: binpack       #", NODE_POLICIES),
        ("docs/moving.md", "| annotation `hami.io/gpu-scheduler-policy` |", POLICIES),
        ("examples/configs/memory.yaml", "      # placement: binpack    #", NODE_POLICIES),
        ("docs/scheduling.md", "| the pod | annotation `gpushare/placement`", POLICIES),
        ("docs/scheduling.md", "`binpack` takes the fullest GPU", POLICIES),
        ("charts/gpushare/values.yaml", "  # Where a pod goes if neither", POLICIES),
        ("charts/gpushare/values.yaml", "  # Which GPU a slice is made on if neither", POLICIES),
        ("charts/gpushare/values.yaml", "# Which GPU the next replica comes from", REPLICA_POLICIES),
    ],
)
def test_documents_list_every_value(file: str, begin: str, table: dict[str, object]) -> None:
    """Where a document lists the values of a table, the list is whole, in the spelling of people or of configs."""
    (line,) = [each for each in (ROOT / file).read_text().splitlines() if each.startswith(begin)]
    missing = [name for name in table if not re.search(rf"\b{re.escape(name)}\b", line, re.IGNORECASE)]
    assert missing == [], f"{file} does not name them in: {line}"


@pytest.mark.parametrize(
    ("consequence", "xids"), [("logged and ignored", APPLICATION_XIDS), ("unhealthy until a reset", RESET_XIDS)]
)
def test_the_table_of_faults_has_the_xids(consequence: str, xids: frozenset[int]) -> None:
    """`docs/reliability.md` says of the XIDs what the daemon does by default."""
    rows = [line.split("|") for line in (ROOT / "docs/reliability.md").read_text().splitlines()]
    (named,) = [row[1] for row in rows if row[1:2] and "XID" in row[1] and row[2].strip().startswith(consequence)]
    assert {int(number) for number in re.findall(r"\d+", named)} == xids


@pytest.mark.parametrize("label", [ACK, NOS])
def test_documents_list_every_value_of_a_label(label: str) -> None:
    """The table of labels in `docs/cluster.md` has each value that is followed."""
    lines = (ROOT / "docs/cluster.md").read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| `{label}` |"))
    rows = [lines[first]]
    for line in lines[first + 1 :]:
        if not line.startswith("| | "):
            break
        rows.append(line)
    told = {value for row in rows for value in re.findall("`([^`]+)`", row.split("|")[2])}
    assert told == values_of(label, partitioning=True)


def test_descriptions_list_every_isolation() -> None:
    """The reference and the schema say of a key in words what each of its values is; `none` is nothing."""
    for entry, key, table in (
        (MemoryResource, "isolation", ENFORCING),
        (MemoryResource, "compute", COMPUTING),
        (TimeSlicedResource, "isolation", ENFORCING.keys() - {"mps", "driver+mps"}),
    ):
        text = (entry.model_fields[key].description or "").lower().replace("driver and mps", "driver+mps")
        assert [name for name in table if name not in text] == [], f"the description of {key} of {entry.__name__}"


@pytest.mark.parametrize(
    ("entry", "table"),
    [
        ("memory: {resources: [{name: aliyun.com/gpu-mem, compute: requested}]}", COMPUTING),
        (
            "timeSlicing: {resources: [{name: gpu, replicas: 2, isolation: mps}]}",
            ISOLATIONS.keys() - {"mps", "driver+mps"},
        ),
    ],
)
def test_messages_list_every_isolation(entry: str, table: Collection[str], tmp_path: Path) -> None:
    """Who chose an isolation that is not possible there is told each one that is."""
    (tmp_path / "config.yaml").write_text(f"version: v1\nsharing: {{{entry}}}\n")
    ((_, message, *_),) = [(each.path, each.message) for each in load(tmp_path / "config.yaml", []).problems]
    assert [name for name in table if not re.search(rf"\b{re.escape(name)}\b", message)] == [], (
        f"not in this message: {message}"
    )


def test_the_notice_of_a_label_lists_every_isolation_of_compute() -> None:
    """Who wants compute by a node label is told each isolation with which it is offered."""
    config = load(None).config
    assert config is not None
    _, (notice,) = apply_labels({ACK: "core_mem"}, config, partitioning=False)
    assert [name for name in COMPUTING if name not in notice] == [], "_WITHOUT_CORES in config/directives.py"


def test_the_page_of_configs_lists_every_section_beyond_nvidias() -> None:
    """Who comes from NVIDIA's plugin is told at once which sections are new."""
    ours = {field.alias or name for name, field in Config.model_fields.items()} - NVIDIAS
    beginning = (ROOT / "docs/configuration.md").read_text().partition("- **")[0]
    assert [section for section in sorted(ours) if f"`{section}`" not in beginning] == [], "docs/configuration.md, top"

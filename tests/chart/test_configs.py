"""Configs inside the values: Helm rejects what no config has, in mappings by the schema, in texts by the templates."""

from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from generators import chart_schema
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.config.loading.messages import sections_with
from gpushare_plugin.config.loading.recognition import HELM_KEYS, VALUES_AND_FLAGS
from tests.chart.rendering import CHART, ROOT, objects, yaml_of

MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    (
        {"sharing": {"timeslicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}},
        "at '/config/map/a/sharing': additional properties 'timeslicing' not allowed",
        "config.map.a.sharing has no key timeslicing; the keys there are memory, mps, timeSlicing: correct the file",
    ),
    (
        {"sharings": {}},
        "at '/config/map/a': additional properties 'sharings' not allowed",
        "config.map.a has no key sharings; the keys there are dra, driverLimits, flags, ",
    ),
    (
        {"sharing": {"memory": {"resources": [{"name": "aliyun.com/gpu-mem", "units": "GiB"}]}}},
        "at '/config/map/a/sharing/memory/resources/0': additional properties 'units' not allowed",
        "config.map.a.sharing.memory.resources[0] has no key units; the keys there are ",
    ),
    (
        {"flags": {"plugin": {"deviceListStrategies": ["envvar"]}}},
        "at '/config/map/a/flags/plugin': additional properties 'deviceListStrategies' not allowed",
        "config.map.a.flags.plugin has no key deviceListStrategies; the keys there are ",
    ),
]


@pytest.mark.parametrize(("config", "by_schema", "by_template"), MISTAKES)
def test_a_key_that_no_config_has_is_rejected(config: dict[str, Any], by_schema: str, by_template: str) -> None:
    """A misspelt key is rejected by Helm with its place, and in a text as much as in a mapping."""
    with pytest.raises(helm_python.HelmValuesError) as rejection:
        objects({"config": {"map": {"a": config}}})
    assert by_schema in str(rejection.value)
    with pytest.raises(helm_python.HelmRenderError) as rejected:
        objects({"config": {"map": {"a": yaml.safe_dump(config)}}})
    assert by_template in str(rejected.value)


def test_a_wrong_value_in_a_mapping_is_rejected() -> None:
    """The schema checks values as well; in a text they are left to the daemon."""
    config = {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 1}]}}}
    with pytest.raises(helm_python.HelmValuesError, match="/resources/0/replicas': minimum: got 1, want 2"):
        objects({"config": {"map": {"a": config}}})
    assert objects({"config": {"map": {"a": yaml.safe_dump(config)}}})


@pytest.mark.parametrize("file", sorted((ROOT / "examples/configs").iterdir()), ids=lambda file: file.name)
@pytest.mark.parametrize("as_text", [True, False])
def test_helm_accepts_what_the_daemon_accepts(file: Path, *, as_text: bool) -> None:
    """No example config is rejected by the chart, in either form."""
    config = load(file).config
    assert config is not None
    content = file.read_text() if as_text else yaml.safe_load(file.read_text())
    enabled = {"mps": {"enabled": True}, "dra": {"enabled": config.dra is not None}}
    assert objects({"config": {"map": {"a": content}}, **enabled})


def test_the_schemas_of_the_chart_are_not_stale() -> None:
    """Both have what `gpushare schema` prints; `make generate` writes them."""
    assert chart_schema.VALUES_SCHEMA.read_text() == chart_schema.values_schema(), "run make generate"
    assert chart_schema.CONFIG_SCHEMA.read_text() == chart_schema.of_configs(), "run make generate"


def test_values_that_a_config_has_elsewhere_are_known() -> None:
    """`check-config` tells a file of such values from a config with keys in the wrong place by this list."""
    values = yaml_of(CHART / "values.yaml")
    homes = {key: sections_with(key) for key in values.keys() - HELM_KEYS - {"mps"}}
    assert {key for key, found in homes.items() if found and "the top level" not in found} == VALUES_AND_FLAGS

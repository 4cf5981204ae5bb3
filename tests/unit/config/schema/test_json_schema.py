"""The JSON Schema of the config says what the loader says, as far as JSON Schema can."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped] # ships no types
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.config.loading.document import parse
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.loading.scalars import write
from gpushare_plugin.config.schema.fields import Kind, keys, sections
from gpushare_plugin.config.schema.json_schema import config_schema
from gpushare_plugin.config.schema.places import Origin
from tests.unit.config.loading.test_load import NVIDIA_SAMPLES
from tests.unit.config.loading.test_properties import RIGHT, any_data, check, like

SCHEMA = config_schema()
EXAMPLES = sorted((Path(__file__).parents[4] / "examples" / "configs").glob("*.yaml"))
UUID = "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"

RULES_OF_THE_LOADER = (
    "already used at",
    "llowed: nvidia.com/gpu",  # a name that `resources` does not declare
    "or a clearly different name",
    "reserved",
    "characters)",
    "domain consists of",  # names that look right as a whole
    "twice",
    "MPS shares only whole GPUs",
    "with renameByDefault",
    "is given twice",
    "the file is empty",
    "a whole number",  # JSON does not tell 2.0 from 2
    "an index such as 0",  # as above
    "a count of 1 or more",
    "an XID",
    "XIDs, whole numbers",
    "a percentage",
    "allowed: [] or [0]",
)
"""Words of the messages about what JSON Schema cannot say; all other mistakes are found by the schema as well."""

Load = Callable[..., Loaded]


def valid(data: object) -> bool:
    """Return whether the schema accepts data."""
    return bool(jsonschema.Draft7Validator(SCHEMA).is_valid(data))


def plain(text: str) -> Any:
    """Return what a config file holds, as the loader and Helm read it."""
    root, findings = parse(text, Origin("config"))
    assert root is not None
    assert not findings
    return root.plain()


def test_the_schema_is_of_draft_7_and_refers_to_nothing() -> None:
    """Helm 3 knows no newer draft, and the schema stands inside the chart's, where a reference would lead elsewhere."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$ref" not in json.dumps(SCHEMA)


def patterns(schema: object) -> Iterator[str]:
    """Yield every regular expression of a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        for inner in schema.values():
            yield from patterns(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from patterns(inner)


def test_patterns_of_the_schema_are_known_to_go_and_to_javascript() -> None:
    """No pattern looks ahead or back, which Helm's language cannot, and none spells a class as only Python does."""
    found = set(patterns(SCHEMA))
    assert found
    assert [each for each in found if re.search(r"\(\?[^:]|\\[AZbBdDsS]", each)] == []


def test_every_key_is_described_for_editors() -> None:
    """Whoever points at a key is shown what it means."""
    for path, section in sections():
        place = SCHEMA
        for key in path:
            place = place["items"] if isinstance(key, int) else place["properties"][key]
        for key, field in keys(section).items():
            assert place["properties"][key]["description"] == field.description
            assert Kind.of(field.annotation).bare is not None


@pytest.mark.parametrize("file", EXAMPLES, ids=[file.stem for file in EXAMPLES])
def test_the_examples_are_valid(file: Path) -> None:
    """Every config of `examples/`."""
    assert valid(plain(file.read_text()))


@pytest.mark.parametrize("sample", NVIDIA_SAMPLES.values(), ids=NVIDIA_SAMPLES.keys())
def test_nvidias_configs_are_valid(sample: str) -> None:
    """All keys of NVIDIA's plugin, those without effect included."""
    assert valid(plain(sample))


GOOD = (
    "{}",
    "{version: , flags: , sharing: , health: {}}",
    "{flags: {plugin: {deviceListStrategy: [envvar, cdi-cri]}, nvidiaDevRoot: '', gfd: {sleepInterval: 60}}}",
    "{resources: {mig: [{pattern: '*', name: small}]}}",
    "{resources: {migs: [{pattern: '*', name: nvidia.com/small}]}}",
    "{sharing: {timeSlicing: {resources: [{name: gpu, rename: , devices: all, replicas: 2}]}}}",
    f"{{sharing: {{memory: {{resources: [{{name: example.com/mem, unit: 256MiB, devices: [0, '0:1', {UUID}]}}]}}}}}}",
    "{sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, compute: 50, isolation: mps, devices: 3}]}}}",
    "{sharing: {mps: {sizes: [{slices: [{size: 10gb, count: 2}]}]}}}",
    "{health: {ignoredXids: all, watchedXids: [48], probeSeconds: 0.5}}",
    "{imex: {channelIDs: [], required: false}}",
)

BAD = (
    "[]",
    "{version: v2}",
    "{Version: v1}",
    "{sharing: {timeslicing: {resources: [{name: gpu, replicas: 2}]}}}",
    "{sharing: {timeSlicing: }}",
    "{sharing: {timeSlicing: {resources: []}}}",
    "{sharing: {timeSlicing: {resources: [{name: gpu}]}}}",
    "{sharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}}",
    "{sharing: {timeSlicing: {resources: [{name: gpu, replicas: '2'}]}}}",
    "{sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, isolation: mps}]}}}",
    "{sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}}",
    "{sharing: {mps: {sizes: [{slices: [{size: 10GB}]}]}}}",
    "{sharing: {memory: {resources: [{name: gpu-mem}]}}}",
    "{sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, unit: GB}]}}}",
    "{sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, devices: []}]}}}",
    "{sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, devices: [0, 0]}]}}}",
    "{sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, compute: 101}]}}}",
    "{flags: {plugin: {deviceListStrategy: env}}}",
    "{flags: {plugin: {deviceListStrategy: []}}}",
    "{flags: {plugin: {cdiKind: gpu}}}",
    "{flags: {mpsRoot: run/mps}}",
    "{flags: {deviceDiscoveryStrategy: tegra}}",
    "{flags: {migStrategy: Mixed}}",
    "{flags: {gfd: {sleepInterval: true}}}",
    "{resources: {mig: [], migs: []}}",
    "{health: {probeSeconds: 0}}",
    "{health: {watchedXids: [0]}}",
    "{imex: {channelIDs: [1]}}",
    "{imex: {channelIDs: [0]}}",
    "{imex: {required: true}}",
)


@pytest.mark.parametrize("text", GOOD)
def test_configs_that_the_loader_accepts_are_valid(load_text: Load, text: str) -> None:
    """The good configs of the table."""
    assert load_text(text).problems == ()
    assert valid(plain(text))


@pytest.mark.parametrize("text", BAD)
def test_configs_that_the_loader_rejects_are_not_valid(load_text: Load, text: str) -> None:
    """The bad configs of the table: misspelt keys, wrong types, words and numbers."""
    assert load_text(text).problems
    assert not valid(yaml.safe_load(text))


@given(st.one_of(like(RIGHT), any_data))
def test_schema_and_loader_agree_on_any_data(data: object) -> None:
    """What the loader accepts is valid; what is valid and rejected breaks a rule that no JSON Schema can express."""
    text = write(data)
    loaded = check(text.encode(), [])
    root, _findings = parse(text, Origin("config"))
    if not loaded.problems:
        assert root is not None
        assert valid(root.plain())
    elif root is not None and valid(root.plain()):
        messages = [finding.message for finding in loaded.problems]
        assert [each for each in messages if not any(words in each for words in RULES_OF_THE_LOADER)] == []

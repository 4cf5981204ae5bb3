"""Which files of a directory hold configs."""

from pathlib import Path

import pytest
import yaml

from gpushare_plugin.config.loading.load import DEFAULT
from gpushare_plugin.config.loading.recognition import HELM_KEYS
from gpushare_plugin.config.schema.fields import keys, sections
from gpushare_plugin.config.sources.files import configs_in_bytes, configs_in_directory, configs_in_file

CONFIG = "version: v1\nsharing:\n  memory:\n    resources:\n    - name: aliyun.com/gpu-mem\n"
MANIFEST = "apiVersion: v1\nkind: ConfigMap\ndata:\n  default: |\n    version: v1\n"
TEMPLATE = "apiVersion: v1\nkind: ConfigMap\ndata:\n{{- range }}\n  sharing: {{ . }}\n{{- end }}\n"
DEPLOYMENTS = "kind: Deployment\napiVersion: apps/v1\nsharing: {}\n---\nkind: Deployment\napiVersion: apps/v1\n"


def names(directory: Path) -> list[str]:
    """Return the configs of a directory by name."""
    return [str(found).removeprefix(f"{directory}/") for found in configs_in_directory(directory).configs]


def test_a_directory_is_searched_for_configs(tmp_path: Path) -> None:
    """Configs, manifests and values at any depth; nothing else, and nothing of Git's."""
    files = {
        "configs/a.yaml": CONFIG,
        "configs/b.yml": CONFIG,
        "cm.yaml": MANIFEST,
        "values.yaml": f"image: x\nconfig:\n  map:\n    one: |\n      {CONFIG.splitlines()[0]}\n",
        "chart/templates/cm.yaml": TEMPLATE,
        "deployments.yaml": DEPLOYMENTS,
        "gpus.yaml": "gpus: [{memory: 16GiB}]\n",
        "README.md": CONFIG,
        ".git/config.yaml": CONFIG,
        "broken.yaml": "sharing:\n\t- x\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert names(tmp_path) == [
        "broken.yaml",
        "cm.yaml (data.default)",
        "configs/a.yaml",
        "configs/b.yml",
        "values.yaml (config.map.one)",
    ]


def test_a_mounted_configmap_is_a_directory_of_configs(tmp_path: Path) -> None:
    """Its files have no suffix, and lead through a link of the kubelet's."""
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "..2026" / "default").write_text(CONFIG)
    (tmp_path / "default").symlink_to("..data/default")
    assert names(tmp_path) == ["default"]


@pytest.mark.parametrize("name", ["a100-v1.2", "a.conf", "a.txt", "a.YAML", "default"])
def test_a_config_is_found_whatever_its_name_ends_with(tmp_path: Path, name: str) -> None:
    """Keys of a ConfigMap may have dots; what looks like a config is one."""
    (tmp_path / name).write_text("flags: {migStrategy: bad}\n")
    assert names(tmp_path) == [name]


def test_every_file_of_a_mounted_configmap_is_checked(tmp_path: Path) -> None:
    """The daemon takes each of them for a config."""
    (tmp_path / "..data").mkdir()
    (tmp_path / "notes.txt").write_text("hello\n")
    search = configs_in_directory(tmp_path)
    assert [Path(each.source).name for each in search.configs] == ["notes.txt"]
    assert search.passed_over == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.yaml", b""),
        ("binary", b"\xff\x00\x01"),
        ("utf-16.yaml", "version: v1\n".encode("utf-16")),
        ("large.yaml", b"# " + b"x" * (1 << 20) + b"\nversion: v1\n"),
        ("misspelt.yaml", b"sharin: {}\n"),
        ("broken.conf", b"sharing: [\n"),
    ],
    ids=str,
)
def test_unchecked_files_that_may_be_configs_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    """Nobody takes a config for checked that was not."""
    (tmp_path / name).write_bytes(content)
    assert configs_in_directory(tmp_path).passed_over == [tmp_path / name]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("service.yaml", "apiVersion: v1\nkind: Service\n"),
        ("values.yaml", "runtimeClassName: nvidia\nreplicaCount: 1\n"),
        ("gpus.yaml", "gpus: [{memory: 16GiB}]\n"),
        ("README.md", "Write `sharing:` first.\n"),
        ("template.yaml", "{{- if .Values.config }}\n"),
    ],
    ids=str,
)
def test_files_that_cannot_be_configs_are_not_mentioned(tmp_path: Path, name: str, content: str) -> None:
    """A folder of Git has many such files."""
    (tmp_path / name).write_text(content)
    assert configs_in_directory(tmp_path).passed_over == []


def test_a_file_that_cannot_be_read_is_a_mistake_in_a_directory_as_well(tmp_path: Path) -> None:
    """Here a link that leads nowhere; the other files are checked."""
    (tmp_path / "good.yaml").write_text(CONFIG)
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    gone, good = configs_in_directory(tmp_path).configs
    assert [finding.message for finding in gone.findings] == ["there is no such file; check the path"]
    assert good.findings == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image: {}\nconfig: {map: default}\n", "found Helm values without a config: config.map is no section with"),
        ("config: default\n", "found Helm values without a config: config.map is no section with names"),
        ("devicePlugin: {config: {name: a}}\n", "found values of the GPU operator without a config: devicePlugin."),
        ("toolkit: {enabled: true}\n", "found values of the GPU operator without a config: devicePlugin.config.data"),
        ("apiVersion: v1\nkind: ConfigMap\n", "found a ConfigMap without a config: it has no text in data"),
        ("apiVersion: v1\nkind: ConfigMap\ndata: {}\n", "found a ConfigMap without a config: "),
        ("apiVersion: v1\nkind: Service\n", 'found a manifest of kind "Service" without a config'),
        ("gpus: [{memory: 16GiB}]\n", "found simulated GPUs, but a config is expected; give this file with --simulate"),
    ],
)
def test_files_of_other_kinds_are_recognised(text: str, message: str) -> None:
    """The advice for them is not that for a config with mistakes."""
    [found] = configs_in_bytes(text.encode(), "stdin")
    [finding] = found.findings
    assert finding.message.startswith(message)


OF_THE_CHART = ["runtimeClassName: nvidia\n", "migStrategy: mixed\ngfd: {enabled: true}\n", "config: {map: {}}\n"]


@pytest.mark.parametrize("text", [*OF_THE_CHART, 'config: {name: ""}\n', "partitioning: {enabled: true}\n"])
def test_helm_values_without_a_config_are_no_mistake(tmp_path: Path, text: str) -> None:
    """The default config of the chart counts, in a file as in a directory."""
    (tmp_path / "values.yaml").write_text(text)
    in_file, in_directory = configs_in_file(tmp_path / "values.yaml"), configs_in_directory(tmp_path)
    assert (in_directory.configs, in_directory.passed_over) == (in_file, [])
    [found] = in_file
    assert found.root is not None
    assert found.values is not None
    assert (found.root.plain(), found.findings, found.values.warning) == (DEFAULT, [], "")


def test_helm_values_name_the_configmap_with_the_configs(tmp_path: Path) -> None:
    """The default config does not count there, and nothing can be checked."""
    (tmp_path / "values.yaml").write_text("config: {name: mine}\n")
    for [found] in (configs_in_file(tmp_path / "values.yaml"), configs_in_directory(tmp_path).configs):
        assert found.values is not None
        assert (found.root, found.findings, found.is_elsewhere) == (None, [], True)
        assert 'the configs are in the ConfigMap "mine" (config.name)' in found.values.note


def test_values_that_may_be_a_config_with_keys_in_the_wrong_place_are_warned_of() -> None:
    """Both have these keys, each in another place."""
    [found] = configs_in_bytes(b"deviceListStrategy: [volume-mounts]\nmigStrategy: mixed\n", "stdin")
    assert found.values is not None
    assert found.values.warning.endswith('; if this is a config, write "deviceListStrategy" in flags.plugin')


@pytest.mark.parametrize(
    "text",
    ["image: {}\nreplicaCount: 1\n", "resources: [deployment.yaml]\ncommonLabels: {app: web}\n", "toolkit: {}\n"],
    ids=["another chart", "a Kustomization", "the GPU operator"],
)
def test_values_of_another_chart_are_left_out_of_a_directory(tmp_path: Path, text: str) -> None:
    """A folder of Git has values of many charts."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "values.yaml").write_text(text)
    assert names(tmp_path) == ["config.yaml"]
    assert configs_in_directory(tmp_path).passed_over == []


def test_every_key_of_helm_values_is_recognised() -> None:
    """Values of our chart are recognised by any key that no config has."""
    chart = Path(__file__).parents[4] / "charts" / "gpushare" / "values.yaml"
    of_configs = {key for _path, section in sections() for key in keys(section)}
    assert set(yaml.safe_load(chart.read_text())) - of_configs - HELM_KEYS == set()
    assert HELM_KEYS & of_configs == set()
    [found] = configs_in_file(chart)
    assert found.is_of_the_chart


def test_a_directory_without_configs_is_a_mistake(tmp_path: Path) -> None:
    """Whoever gave it meant another one."""
    [found] = configs_in_directory(tmp_path).configs
    assert [finding.message for finding in found.findings] == ["found no config in any file here"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no such file; check the path"), (b"a: \xff", "found the byte 0xff; save the file as UTF-8 text")],
)
def test_an_unreadable_file_is_a_mistake_and_stops_no_other_check(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    """Other files are checked all the same."""
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    [found] = configs_in_file(file)
    assert found.root is None
    assert [finding.message for finding in found.findings] == [message]


def test_piped_text_is_read_as_a_file_is() -> None:
    """A config or a manifest can be piped."""
    assert [str(found) for found in configs_in_bytes(CONFIG.encode(), "stdin")] == ["stdin"]
    assert [str(found) for found in configs_in_bytes(MANIFEST.encode(), "stdin")] == ["stdin (data.default)"]


def test_manifests_without_a_config_are_a_mistake() -> None:
    """It is not put down to the second document, which no config may have."""
    [found] = configs_in_bytes(DEPLOYMENTS.encode(), "stdin")
    assert [finding.message for finding in found.findings] == ["found manifests, none of them with a config"]

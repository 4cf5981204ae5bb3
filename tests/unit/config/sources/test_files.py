"""Which files of a directory hold configs."""

from pathlib import Path

import pytest

from gpushare_plugin.config.sources.files import configs_in_bytes, configs_in_directory, configs_in_file

CONFIG = "version: v1\nsharing:\n  memory:\n    resources:\n    - name: aliyun.com/gpu-mem\n"
MANIFEST = "apiVersion: v1\nkind: ConfigMap\ndata:\n  default: |\n    version: v1\n"
TEMPLATE = "apiVersion: v1\nkind: ConfigMap\ndata:\n{{- range }}\n  sharing: {{ . }}\n{{- end }}\n"
DEPLOYMENTS = "kind: Deployment\napiVersion: apps/v1\nsharing: {}\n---\nkind: Deployment\napiVersion: apps/v1\n"


def names(directory: Path) -> list[str]:
    """Return the configs of a directory by name."""
    return [str(found).removeprefix(f"{directory}/") for found in configs_in_directory(directory)]


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


def test_a_directory_without_configs_is_a_mistake(tmp_path: Path) -> None:
    """Whoever gave it meant another one."""
    [found] = configs_in_directory(tmp_path)
    assert [finding.message for finding in found.findings] == ["found no config in any file here"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "there is no such file; check the path"), (b"a: \xff", "found the byte 0xff; save the file as UTF-8 text")],
)
def test_what_cannot_be_read_is_a_mistake_of_the_file(tmp_path: Path, content: bytes | None, message: str) -> None:
    """It does not keep other files from being checked."""
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    [found] = configs_in_file(file)
    assert found.root is None
    assert [finding.message for finding in found.findings] == [message]


def test_what_was_piped_is_read_as_a_file_is() -> None:
    """A config or a manifest."""
    assert [str(found) for found in configs_in_bytes(CONFIG.encode(), "stdin")] == ["stdin"]
    assert [str(found) for found in configs_in_bytes(MANIFEST.encode(), "stdin")] == ["stdin (data.default)"]


def test_manifests_without_a_config_are_a_mistake() -> None:
    """It is not put down to the second document, which no config may have."""
    [found] = configs_in_bytes(DEPLOYMENTS.encode(), "stdin")
    assert [finding.message for finding in found.findings] == ["found manifests, none of them with a config"]

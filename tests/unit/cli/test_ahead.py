"""Tests of `gpushare_plugin.cli.ahead`: for which commands NVML is initialised before the rest is imported."""

from pathlib import Path

import pytest

from gpushare_plugin.cli.ahead import begin, driver_root

DEFAULT = Path("/driver-root")


@pytest.mark.parametrize(
    ("arguments", "environment", "root"),
    [
        (["run"], {}, DEFAULT),
        (["run", "--node-name", "here"], {"CONTAINER_DRIVER_ROOT": ""}, DEFAULT),
        (["run", "--container-driver-root", "/there"], {}, Path("/there")),
        (["run", "--driver-root-ctr-path=/there"], {}, Path("/there")),
        (["run"], {"CONTAINER_DRIVER_ROOT": "/there"}, Path("/there")),
        (["run", "--container-driver-root=/there"], {"DRIVER_ROOT_CTR_PATH": "/there"}, Path("/there")),
    ],
)
def test_the_root_is_certain(arguments: list[str], environment: dict[str, str], root: Path) -> None:
    """Options and variables name the driver root over any config; without them it is the schema's default."""
    assert driver_root(arguments, environment) == root


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        ([], {}),
        (["list"], {}),
        (["run", "--help"], {}),
        (["run", "--simulate", "gpus.yaml"], {}),
        (["run", "--simulate=gpus.yaml"], {}),
        (["run"], {"SIMULATE": "gpus.yaml"}),
        (["run", "--container-driver-root=/here"], {"DRIVER_ROOT_CTR_PATH": "/there"}),
        (["run", "--container-driver-root=/here", "--container-driver-root=/there"], {}),
    ],
)
def test_no_daemon_and_no_certainty(arguments: list[str], environment: dict[str, str]) -> None:
    """Other commands, simulated GPUs and names that contradict each other: nothing is begun."""
    assert driver_root(arguments, environment) is None


@pytest.mark.parametrize("how", ["file", "directory", "variable"])
def test_a_config_may_name_another_root(tmp_path: Path, how: str) -> None:
    """Where any config that could be chosen names a driver root, the config decides, unless an option does."""
    config = tmp_path / "configs" / "default"
    config.parent.mkdir()
    arguments, environment = {
        "file": (["run", "--config-file", str(config)], {}),
        "directory": (["run", f"--config-directory={config.parent}"], {}),
        "variable": (["run"], {"CONFIG_FILE": str(config)}),
    }[how]
    config.write_text("version: v1\n")
    assert driver_root(arguments, environment) == DEFAULT
    config.write_text("version: v1\nflags: {plugin: {containerDriverRoot: /there}}\n")
    assert driver_root(arguments, environment) is None
    assert driver_root([*arguments, "--container-driver-root=/here"], environment) == Path("/here")


@pytest.mark.parametrize("option", ["--config-file", "--config-directory"])
def test_what_cannot_be_read_is_left_to_the_daemon(tmp_path: Path, option: str) -> None:
    """A config that is missing is reported by the daemon, in its log, and not before it has one."""
    arguments = ["run", f"{option}={tmp_path / 'missing'}"]
    with pytest.raises(OSError, match="missing"):
        driver_root(arguments, {})
    begin(arguments, {})

"""Tests of `gpushare_plugin.cli.setting_options`."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from gpushare_plugin.cli.setting_options import (
    SETTING_OPTIONS,
    SettingOption,
    overrides,
    plugin_directory,
    with_nvidias_options,
    with_setting_options,
)
from gpushare_plugin.config.loading.load import load

NVIDIAS_VARIABLES = {
    "--mig-strategy": ["MIG_STRATEGY"],
    "--fail-on-init-error": ["FAIL_ON_INIT_ERROR"],
    "--nvidia-driver-root": ["NVIDIA_DRIVER_ROOT"],
    "--nvidia-dev-root": ["NVIDIA_DEV_ROOT"],
    "--gdrcopy-enabled": ["GDRCOPY_ENABLED"],
    "--gds-enabled": ["GDS_ENABLED"],
    "--mofed-enabled": ["MOFED_ENABLED"],
    "--device-discovery-strategy": ["DEVICE_DISCOVERY_STRATEGY"],
    "--pass-device-specs": ["PASS_DEVICE_SPECS"],
    "--device-list-strategy": ["DEVICE_LIST_STRATEGY"],
    "--device-id-strategy": ["DEVICE_ID_STRATEGY"],
    "--cdi-annotation-prefix": ["CDI_ANNOTATION_PREFIX"],
    "--dp-disable-healthchecks": ["DP_DISABLE_HEALTHCHECKS"],
    "--dp-enable-healthchecks": ["DP_ENABLE_HEALTHCHECKS"],
    "--container-driver-root": ["CONTAINER_DRIVER_ROOT", "DRIVER_ROOT_CTR_PATH"],
    "--nvidia-ctk-path": ["NVIDIA_CTK_PATH", "NVIDIA_CDI_HOOK_PATH"],
    "--mps-root": ["MPS_ROOT"],
    "--shared-devices-allocation-policy": ["SHARED_DEVICES_ALLOCATION_POLICY"],
    "--imex-channel-ids": ["IMEX_CHANNEL_IDS"],
    "--imex-required": ["IMEX_REQUIRED"],
}


@click.command()
@with_setting_options
@click.pass_context
def tell(context: click.Context, /, **_settings: Any) -> None:
    """Print the settings that were given, and by what."""
    click.echo(json.dumps([[".".join(map(str, each.path)), each.value, each.source] for each in overrides(context)]))


def run(*arguments: str, **environment: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(tell, arguments, env=environment)


def given(*arguments: str, **environment: str) -> list[list[Any]]:
    """Return path, value and source of each setting that was given."""
    result = run(*arguments, **environment)
    assert result.exit_code == 0, result.output
    return list(json.loads(result.output))


def names(option: SettingOption) -> str:
    """Name an option in the list of tests."""
    return option.names[0]


@pytest.mark.parametrize("option", SETTING_OPTIONS, ids=names)
def test_options_have_the_variables_of_nvidias_plugin(option: SettingOption) -> None:
    """An environment made for NVIDIA's plugin can stay; our own options follow the same rule."""
    own = option.names[0].removeprefix("--").replace("-", "_").upper()
    assert option.environment == NVIDIAS_VARIABLES.get(option.names[0], [own])


def test_options_have_the_names_of_nvidias_plugin() -> None:
    """No option that means the same has another name."""
    assert NVIDIAS_VARIABLES.keys() <= {option.names[0] for option in SETTING_OPTIONS}


@pytest.mark.parametrize("option", SETTING_OPTIONS, ids=names)
def test_every_option_sets_its_setting(option: SettingOption) -> None:
    """Each name of the option, and each variable, stands for the one place in the settings it claims."""
    path = ".".join(map(str, option.path))
    for name in option.names:
        assert [(each[0], each[2]) for each in given(f"{name}=true")] == [(path, option.names[0])]
    for variable in option.environment:
        told = [(each[0], each[2]) for each in given(**{variable: "true"})]
        assert told == [(path, f"{option.environment[0]} (environment)")]


def test_an_option_that_is_not_given_overrides_nothing() -> None:
    """An option that is left out, or whose variable is empty, leaves the file its say."""
    assert given() == []
    assert given(MIG_STRATEGY="", PASS_DEVICE_SPECS="", DEVICE_LIST_STRATEGY="", DP_DISABLE_HEALTHCHECKS="") == []


def test_the_command_line_beats_the_environment() -> None:
    """Of the two only the stronger one is told on."""
    assert given("--mig-strategy", "mixed", MIG_STRATEGY="single") == [["flags.migStrategy", "mixed", "--mig-strategy"]]


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("--pass-device-specs", True),
        ("--pass-device-specs=true", True),
        ("--pass-device-specs=false", False),
        ("--pass-device-specs=1", True),
    ],
)
def test_a_switch_alone_means_true(argument: str, *, value: bool) -> None:
    """As in NVIDIA's plugin a switch can stand alone, and can be told to be off."""
    assert given(argument) == [["flags.plugin.passDeviceSpecs", value, "--pass-device-specs"]]


def test_a_switch_alone_leaves_the_next_option_alone() -> None:
    """What begins with a dash is an option, not the value of the switch before it."""
    told = given("--pass-device-specs", "--mig-strategy", "none")
    assert [value for _path, value, _source in told] == ["none", True]


def test_a_switch_that_is_no_boolean_is_left_to_the_schema() -> None:
    """It is refused together with everything else that is wrong, with the option as its place."""
    assert given("--pass-device-specs=perhaps")[0][1] == "perhaps"
    assert given(PASS_DEVICE_SPECS="perhaps")[0][1] == "perhaps"  # noqa: S106 - a boolean


@pytest.mark.parametrize("text", ["envvar,cdi-cri", "envvar, cdi-cri"])
def test_lists_are_separated_by_commas(text: str) -> None:
    """On the command line as in the environment."""
    assert given("--device-list-strategy", text)[0][1] == ["envvar", "cdi-cri"]
    assert given(DEVICE_LIST_STRATEGY=text)[0][1] == ["envvar", "cdi-cri"]


@pytest.mark.parametrize(
    ("text", "xids"), [("48, 63", [48, 63]), ("13,XIDS", "all"), ("All", "all"), ("63,many", [63, "many"])]
)
def test_xids_are_numbers_or_all(text: str, xids: object) -> None:
    """As in NVIDIA's plugin's variables; a word that is neither stays, to be reported."""
    assert given("--dp-disable-healthchecks", text) == [["health.ignoredXids", xids, "--dp-disable-healthchecks"]]
    assert given(DP_ENABLE_HEALTHCHECKS=text) == [["health.watchedXids", xids, "DP_ENABLE_HEALTHCHECKS (environment)"]]


@pytest.mark.parametrize(("text", "protocol"), [("3", 3), ("2", 2), ("three", "three")])
def test_a_protocol_is_a_number(text: str, protocol: object) -> None:
    """A word that is no number stays, to be reported."""
    assert given("--mps-protocol", text) == [["flags.mpsProtocol", protocol, "--mps-protocol"]]
    assert given(MPS_PROTOCOL=text) == [["flags.mpsProtocol", protocol, "MPS_PROTOCOL (environment)"]]


@pytest.mark.parametrize("option", SETTING_OPTIONS, ids=names)
def test_every_option_is_checked_as_the_file_is(option: SettingOption) -> None:
    """A wrong value is a problem that names the option, whatever it is for."""

    @click.command()
    @with_setting_options
    @click.pass_context
    def problems(context: click.Context, /, **_settings: Any) -> None:
        loaded = load(None, overrides(context))
        click.echo("\n".join(loaded.lines(loaded.problems)))

    result = CliRunner().invoke(problems, [f"{option.names[0]}=§"])
    if result.exit_code == 0:
        place = ".".join(map(str, option.path))
        assert result.output.startswith(f"{option.names[0]}: {place}")
    else:
        assert (result.exit_code, "is not a valid boolean" in result.output) == (2, True)


@pytest.mark.parametrize(("text", "channels"), [("0", [0]), ("0, 1", [0, 1]), ("", None), ("all", ["all"])])
def test_channels_are_read_as_numbers(text: str, channels: object) -> None:
    """As in NVIDIA's plugin; a word that is no number stays, to be reported."""
    assert given(IMEX_CHANNEL_IDS=text) == (
        [["imex.channelIDs", channels, "IMEX_CHANNEL_IDS (environment)"]] if channels is not None else []
    )


@click.command()
@click.option("--device-plugin-path", envvar="DEVICE_PLUGIN_PATH", type=Path, default=Path("/default"))
@with_nvidias_options
@click.pass_context
def directory(context: click.Context, /, **_settings: Any) -> None:
    """Print the directory of the kubelet's sockets."""
    click.echo(plugin_directory(context))


@pytest.mark.parametrize(
    ("arguments", "environment", "printed"),
    [
        ([], {}, "/default"),
        (["--kubelet-socket=/k/kubelet.sock"], {}, "/k"),
        ([], {"KUBELET_SOCKET": "/k/kubelet.sock"}, "/k"),
        (["--kubelet-socket=/k/kubelet.sock", "--device-plugin-path=/k"], {}, "/k"),
        (["--device-plugin-path=/p"], {"NODE_LABEL": "nvidia.com/device-plugin.config"}, "/p"),
    ],
)
def test_the_option_for_the_kubelets_socket_names_our_directory_too(
    arguments: list[str], environment: dict[str, str], printed: str
) -> None:
    """NVIDIA's option for the kubelet's socket names the directory that ours are in, too."""
    result = CliRunner().invoke(directory, arguments, env=environment)
    assert (result.exit_code, result.output) == (0, f"{printed}\n")


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        (["--kubelet-socket=/k/other.sock"], {}, "found /k/other.sock; expected a path that ends in /kubelet.sock"),
        (["--kubelet-socket="], {}, "expected a path that ends in /kubelet.sock"),
        (
            ["--kubelet-socket=/k/kubelet.sock", "--device-plugin-path=/p"],
            {},
            "--kubelet-socket is in /k, but --device-plugin-path is /p; give one of them",
        ),
        ([], {"NODE_LABEL": "team/gpus"}, "found team/gpus; only nvidia.com/device-plugin.config chooses a config"),
        ([], {"CDI_FEATURE_FLAGS": "a,b"}, "found a,b; gpushare has no such setting for its CDI specification"),
        (["--cdi-disable-hooks=all"], {}, "found all; gpushare has no such setting for its CDI specification"),
    ],
)
def test_options_of_nvidia_without_effect_here_are_refused_with_the_reason(
    arguments: list[str], environment: dict[str, str], reason: str
) -> None:
    """Options of NVIDIA's that would change something, and do not here, are errors with a remedy."""
    result = CliRunner().invoke(directory, arguments, env=environment)
    assert result.exit_code == 2
    assert reason in " ".join(result.output.replace("│", " ").split())


def test_the_help_of_an_option_says_what_it_takes_and_its_variable() -> None:
    """Words, switches and lists each show their kind, and the default is told."""
    text = " ".join(run("--help").output.split())
    assert "--mig-strategy [none|single|mixed]" in text
    assert "--pass-device-specs [true|false]" in text
    assert "--device-list-strategy [envvar|volume-mounts|cdi-annotations|cdi-cri],…" in text
    assert "Default: envvar. [env var: DEVICE_LIST_STRATEGY]" in text
    assert "--dp-disable-healthchecks [all|xids|XID,…]" in text
    for option in SETTING_OPTIONS:
        assert all(name in text for name in (*option.names, *option.environment))

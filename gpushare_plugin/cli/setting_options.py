"""The command-line options of NVIDIA's plugin with their environment variables, and our options in the same form.

Most options stand for a setting of the config file. Their meaning and allowed values are read from the schema, so the
help and the file always agree. Only `gpushare run` has the options without a setting. Sources:
`cmd/nvidia-device-plugin` and `cmd/config-manager` of NVIDIA/k8s-device-plugin, 0.17 to 0.20.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from pydantic.fields import FieldInfo

from gpushare_plugin.base.errors import Path as Place
from gpushare_plugin.cli.options import option
from gpushare_plugin.config.directives import CONFIG
from gpushare_plugin.config.loading.load import Override
from gpushare_plugin.config.schema.fields import Kind, field_at
from gpushare_plugin.config.schema.values import Xids, number_or_word, xids_in

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SettingOption:
    """An option for a setting of the config."""

    path: Place
    """The place of the setting in the config."""
    names: tuple[str, ...]
    """The names of the option; messages show the first name for the source of a value."""

    @property
    def environment(self) -> list[str]:
        """The environment variables for the same setting: NVIDIA's names, which are the option's names in capitals."""
        names = (name.removeprefix("--").replace("-", "_").upper() for name in self.names)
        # NVIDIA's plugin reads NVIDIA_DRIVER_ROOT, not DRIVER_ROOT; other software sets DRIVER_ROOT.
        return [name for name in names if name not in {"DRIVER_ROOT", "DEV_ROOT"}]

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return self.names[0].removeprefix("--").replace("-", "_")


SETTING_OPTIONS = (
    SettingOption(("flags", "migStrategy"), ("--mig-strategy",)),
    SettingOption(("flags", "failOnInitError"), ("--fail-on-init-error",)),
    SettingOption(("flags", "mpsRoot"), ("--mps-root",)),
    SettingOption(("flags", "mpsProtocol"), ("--mps-protocol",)),
    SettingOption(("flags", "nvidiaDriverRoot"), ("--nvidia-driver-root", "--driver-root")),
    SettingOption(("flags", "nvidiaDevRoot"), ("--nvidia-dev-root", "--dev-root")),
    SettingOption(("flags", "gdrcopyEnabled"), ("--gdrcopy-enabled",)),
    SettingOption(("flags", "gdsEnabled"), ("--gds-enabled",)),
    SettingOption(("flags", "mofedEnabled"), ("--mofed-enabled",)),
    SettingOption(("flags", "deviceDiscoveryStrategy"), ("--device-discovery-strategy",)),
    SettingOption(("flags", "plugin", "passDeviceSpecs"), ("--pass-device-specs",)),
    SettingOption(("flags", "plugin", "deviceListStrategy"), ("--device-list-strategy",)),
    SettingOption(("flags", "plugin", "deviceIDStrategy"), ("--device-id-strategy",)),
    SettingOption(("flags", "plugin", "cdiAnnotationPrefix"), ("--cdi-annotation-prefix",)),
    SettingOption(("flags", "plugin", "cdiKind"), ("--cdi-kind",)),
    SettingOption(("flags", "plugin", "nvidiaCTKPath"), ("--nvidia-ctk-path", "--nvidia-cdi-hook-path")),
    SettingOption(("flags", "plugin", "containerDriverRoot"), ("--container-driver-root", "--driver-root-ctr-path")),
    SettingOption(("flags", "plugin", "sharedDevicesAllocationPolicy"), ("--shared-devices-allocation-policy",)),
    SettingOption(("imex", "channelIDs"), ("--imex-channel-ids",)),
    SettingOption(("imex", "required"), ("--imex-required",)),
    SettingOption(("health", "ignoredXids"), ("--dp-disable-healthchecks",)),
    SettingOption(("health", "watchedXids"), ("--dp-enable-healthchecks",)),
)
"""The options for settings, in the order of the help."""


_KUBELET_SOCKET = "kubelet.sock"
"""The name of the kubelet's own socket, always the same; the sockets of plugins are in the same directory."""

_NO_SPECS = "gpushare has no such setting for its CDI specification; give this to `nvidia-ctk cdi generate`"


def with_setting_options(command: Command) -> Command:
    """Add an option for every setting in SETTING_OPTIONS to a click command."""
    for each in reversed(SETTING_OPTIONS):
        command = _click_option(each)(command)
    return command


def overrides(context: click.Context) -> list[Override]:
    """Return the settings given on the command line of `context` or, where not given there, in the environment."""
    given = []
    for each in SETTING_OPTIONS:
        value = context.params[each.parameter]
        if value is None or value == ():
            continue
        from_environment = context.get_parameter_source(each.parameter) is ParameterSource.ENVIRONMENT
        source = f"{each.environment[0]} (environment)" if from_environment else each.names[0]
        given.append(Override(each.path, value, source))
    return given


def with_nvidias_options(command: Command) -> Command:
    """Add NVIDIA's options without a setting; options for features that gpushare lacks are refused with the reason."""
    for name, allowed, reason in (
        ("--cdi-disable-hooks", (), _NO_SPECS),
        ("--cdi-feature-flags", (), _NO_SPECS),
        ("--node-label", (CONFIG,), f"only {CONFIG} chooses a config; use this label on your Nodes"),
    ):
        command = option(
            name,
            f"Only {allowed[0]} is accepted." if allowed else "Refused; use `nvidia-ctk cdi generate`.",
            metavar="TEXT",
            expose_value=False,
            callback=partial(_refused, allowed, reason),
        )(command)
    return option(
        "--kubelet-socket",
        "The kubelet's socket, in place of --device-plugin-path.",
        metavar="SOCKET",
        type=click.Path(path_type=Path),
        callback=_kubelet_socket,
    )(command)


def plugin_directory(context: click.Context) -> Path:
    """Return the directory of the kubelet's plugin sockets, from --device-plugin-path or --kubelet-socket."""
    directory: Path = context.params["device_plugin_path"]
    socket: Path | None = context.params["kubelet_socket"]
    if socket is None:
        return directory
    given = context.get_parameter_source("device_plugin_path") is not ParameterSource.DEFAULT
    if given and directory != socket.parent:
        raise click.UsageError(
            f"--kubelet-socket is in {socket.parent}, but --device-plugin-path is {directory}; give one of them",
            context,
        )
    return socket.parent


def _kubelet_socket(context: click.Context, parameter: click.Parameter, socket: Path | None) -> Path | None:
    if socket is None or socket.name == _KUBELET_SOCKET:
        return socket
    expected = f"expected a path that ends in /{_KUBELET_SOCKET}, as every kubelet names it"
    raise click.BadParameter(f"found {socket}; {expected}", context, parameter)


def _refused(
    allowed: tuple[str, ...], reason: str, context: click.Context, parameter: click.Parameter, value: str | None
) -> None:
    if value is not None and value not in allowed:
        raise click.BadParameter(f"found {value}; {reason}", context, parameter)


def _click_option(setting: SettingOption) -> Callable[[Command], Command]:
    field = field_at(setting.path)
    if field is None:
        raise LookupError(setting.path)
    kind = Kind.of(field.annotation)
    form: dict[str, Any] = {"metavar": f"[{'|'.join(map(str, kind.words))}]" if kind.words else "TEXT"}
    if kind.bare is bool:
        # As in NVIDIA's plugin, --option alone means true, and --option=false is possible.
        form = {"callback": _boolean, "is_flag": False, "flag_value": "true", "metavar": "[true|false]"}
    elif any(isinstance(word, int) for word in kind.words):
        form["callback"] = _number
    elif kind.item and kind.item.bare is int:
        form = {"callback": _numbers, "multiple": True, "metavar": "[NUMBER],…"}
    elif kind.item:
        form = {"callback": _split, "multiple": True, "metavar": f"[{'|'.join(map(str, kind.item.words))}],…"}
    elif kind.bare == Xids:
        form = {"callback": _xids, "metavar": "[all|xids|XID,…]"}
    return click.option(
        *setting.names, setting.parameter, envvar=setting.environment, show_envvar=True, help=_help(field), **form
    )


def _help(field: FieldInfo) -> str:
    default = field.default
    if default is None or default == ():
        return str(field.description)
    if isinstance(default, tuple):
        default = ",".join(default)
    return f"{field.description} Default: {str(default).lower() if isinstance(default, bool) else default}."


def _boolean(context: click.Context, parameter: click.Parameter, value: str | None) -> object:
    """Return the boolean that `value` spells, or else `value`, which the schema rejects with all other mistakes."""
    if value is None:
        return None
    try:
        return click.BOOL.convert(value, parameter, context)
    except click.BadParameter:
        return value


def _split(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG001 - fixed by click
    return tuple(word.strip() for words in value for word in words.split(",") if word.strip())


def _number(context: click.Context, parameter: click.Parameter, value: str | None) -> int | str | None:  # noqa: ARG001 - fixed by click
    """Return a word that spells a whole number as a number; the schema rejects other words with all other mistakes."""
    return None if value is None else number_or_word(value)


def _numbers(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[int | str, ...]:
    """Return words that spell whole numbers as numbers; the schema rejects the other words with all other mistakes."""
    return tuple(number_or_word(word) for word in _split(context, parameter, value))


def _xids(context: click.Context, parameter: click.Parameter, value: str | None) -> object:  # noqa: ARG001 - fixed by click
    return None if value is None else xids_in(value)

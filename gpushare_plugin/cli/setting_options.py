"""The command-line options for settings of the config file, each with its environment variable.

Meaning and allowed values are read from the schema, so that help and file always agree.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from pydantic.fields import FieldInfo

from gpushare_plugin.config.loading.load import Override
from gpushare_plugin.config.schema.fields import Kind, field_at
from gpushare_plugin.config.schema.values import Xids, xids_in
from gpushare_plugin.foundation.errors import Path

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SettingOption:
    """An option for the setting at `path`; the first of `names` is shown as the source of a value."""

    path: Path
    names: tuple[str, ...]

    @property
    def environment(self) -> list[str]:
        """The variables that set the same: NVIDIA's names, which are the option's in capitals."""
        names = (name.removeprefix("--").replace("-", "_").upper() for name in self.names)
        # NVIDIA's plugin reads NVIDIA_DRIVER_ROOT, not DRIVER_ROOT, which other software sets.
        return [name for name in names if name not in {"DRIVER_ROOT", "DEV_ROOT"}]

    @property
    def parameter(self) -> str:
        """The name of click's parameter."""
        return self.names[0].removeprefix("--").replace("-", "_")


SETTING_OPTIONS = (
    SettingOption(("flags", "migStrategy"), ("--mig-strategy",)),
    SettingOption(("flags", "failOnInitError"), ("--fail-on-init-error",)),
    SettingOption(("flags", "mpsRoot"), ("--mps-root",)),
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
    SettingOption(("flags", "plugin", "containerDriverRoot"), ("--container-driver-root", "--driver-root-ctr-path")),
    SettingOption(("flags", "plugin", "sharedDevicesAllocationPolicy"), ("--shared-devices-allocation-policy",)),
    SettingOption(("health", "ignoredXids"), ("--dp-disable-healthchecks",)),
    SettingOption(("health", "watchedXids"), ("--dp-enable-healthchecks",)),
)


def with_setting_options(command: Command) -> Command:
    """Add an option for each setting to a click command."""
    for option in reversed(SETTING_OPTIONS):
        command = _click_option(option)(command)
    return command


def overrides(context: click.Context) -> list[Override]:
    """Return the settings given on the command line of `context` or, less strong, in the environment."""
    given = []
    for option in SETTING_OPTIONS:
        value = context.params[option.parameter]
        if value is None or value == ():
            continue
        from_environment = context.get_parameter_source(option.parameter) is ParameterSource.ENVIRONMENT
        source = f"{option.environment[0]} (environment)" if from_environment else option.names[0]
        given.append(Override(option.path, value, source))
    return given


def _click_option(option: SettingOption) -> Callable[[Command], Command]:
    field = field_at(option.path)
    if field is None:
        raise LookupError(option.path)
    kind = Kind.of(field.annotation)
    form: dict[str, Any] = {"metavar": f"[{'|'.join(kind.words)}]" if kind.words else "TEXT"}
    if kind.bare is bool:
        # As in NVIDIA's plugin, --option alone means true and --option=false is possible.
        form = {"callback": _boolean, "is_flag": False, "flag_value": "true", "metavar": "[true|false]"}
    elif kind.item:
        form = {"callback": _split, "multiple": True, "metavar": f"[{'|'.join(kind.item.words)}],…"}
    elif kind.bare == Xids:
        form = {"callback": _xids, "metavar": "[all|xids|XID,…]"}
    return click.option(
        *option.names, option.parameter, envvar=option.environment, show_envvar=True, help=_help(field), **form
    )


def _help(field: FieldInfo) -> str:
    default = field.default
    if default is None or default == ():
        return str(field.description)
    if isinstance(default, tuple):
        default = ",".join(default)
    return f"{field.description} Default: {str(default).lower() if isinstance(default, bool) else default}."


def _boolean(context: click.Context, parameter: click.Parameter, value: str | None) -> object:
    """Read what is a boolean; the schema rejects anything else, together with all other mistakes."""
    if value is None:
        return None
    try:
        return click.BOOL.convert(value, parameter, context)
    except click.BadParameter:
        return value


def _split(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG001 - fixed by click
    return tuple(word.strip() for words in value for word in words.split(",") if word.strip())


def _xids(context: click.Context, parameter: click.Parameter, value: str | None) -> object:  # noqa: ARG001 - fixed by click
    return None if value is None else xids_in(value)

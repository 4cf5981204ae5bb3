"""Loads a config: the file, overridden by options and environment variables, checked as a whole, with notices."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path as FilePath

from gpushare_plugin.base.errors import MOST_PROBLEMS, Path, Problem
from gpushare_plugin.base.files.socket_path import why_too_long
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.loading.mistakes import Mistakes, Override
from gpushare_plugin.config.loading.recognition import not_a_config
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.isolations import limits_compute
from gpushare_plugin.config.schema.places import Finding, PlacedValue, SettingPlaces, SourcePlace, spelled
from gpushare_plugin.config.schema.sections import Config, HamiCore, PluginFlags
from gpushare_plugin.core.namespaces import LONGEST_SOCKET, WITH_NAMESPACES

__all__ = ["Loaded", "Override", "dump", "load", "validated"]

NO_FILE = "without a config file"
"""The source of the default settings, in messages."""

DEFAULT = {"version": "v1", "sharing": {"memory": {"resources": [{"name": names.MEMORY}]}}}
"""The config without a file: every GPU shared by memory, in GiB."""


class Loaded(Struct, frozen=True):
    """The result of loading a config."""

    effective: EffectiveConfig | None
    """The config; None if there are any `problems`."""
    problems: tuple[Finding, ...]
    """The mistakes; beyond MOST_PROBLEMS, mistakes are only counted, in `left_out`."""
    notices: tuple[str, ...]
    """Notices about settings that are accepted and have no effect."""
    places: SettingPlaces
    """The places of the settings."""
    left_out: int = 0
    """The number, at least, of further mistakes."""

    @property
    def config(self) -> Config | None:
        """The effective config alone."""
        return None if self.effective is None else self.effective.config

    def lines(self, problems: Sequence[Problem | Finding]) -> list[str]:
        """Spell `problems`, from the loading or from later checks, with their places, in the order of the file.

        Returns at most MOST_PROBLEMS lines, and a last line with the number of further problems.
        """
        lines = self.places.lines(problems)
        if more := max(0, len(lines) - MOST_PROBLEMS) + self.left_out:
            source = self.places.root.place.source
            lines[MOST_PROBLEMS:] = [f"{source}: at least {more:,} more mistakes are not shown; fix these first"]
        return lines


def load(file: FilePath | None, overrides: Sequence[Override] = ()) -> Loaded:
    """Load `file`, or the default config if `file` is None, put `overrides` over the values, and find all mistakes.

    Raises ConfigError if the file cannot be read. Mistakes in the content are in `problems` of the result.
    """
    if file is None:
        return validated(PlacedValue.of(DEFAULT, NO_FILE), [], overrides)
    # Without a file there is no YAML, and a start without the YAML library is faster.
    from gpushare_plugin.config.loading.document import read  # noqa: PLC0415

    root, findings = read(file)
    return validated(root or nothing_at(str(file)), findings, overrides)


def nothing_at(source: str) -> PlacedValue:
    """Return an empty config in place of a text that is no config: only the overrides are checked."""
    start = SourcePlace(source, (), 1, 1)
    return PlacedValue(start, start, {})


def dump(config: Config) -> str:
    """Spell every effective setting as a file that loads back to an equal config."""
    from gpushare_plugin.config.loading.scalars import write  # noqa: PLC0415 - as above

    return write(config.model_dump(mode="json", by_alias=True, exclude_none=True))


def validated(root: PlacedValue, findings: Sequence[Finding], overrides: Sequence[Override] = ()) -> Loaded:
    """Put `overrides` over the values in `root`, and find all mistakes.

    `root` is changed. `findings` are the mistakes already known.
    """
    if misplaced := not_a_config(root):
        return Loaded(None, (misplaced,), (), SettingPlaces(root))
    mistakes = Mistakes(root, findings)
    config = mistakes.config(overrides)
    if config is None:
        return Loaded(None, tuple(mistakes.findings), (), SettingPlaces(root), mistakes.left_out)
    found = (*_empty(root, config), *notices(config, [override.path for override in overrides]))
    return Loaded(EffectiveConfig(config), (), found, SettingPlaces(root))


def _empty(root: PlacedValue, config: Config) -> Iterator[str]:
    """Yield a notice for a section that has to be written as `{}` where all of its keys are left out."""
    if config.dra is None and root.child("dra") is not None:
        yield "dra is empty and has no effect; write `dra: {}` to give all GPUs by claim, or remove dra"


def notices(config: Config, overridden: Collection[Path] = ()) -> Iterator[str]:
    """Yield a notice for each setting that is accepted and has no effect.

    An `overridden` protocol of MPS is that of all configs, also of those without MPS.
    """
    if config.flags.gfd is not None:
        yield "flags.gfd belongs to GPU feature discovery and has no effect here"
    if config.flags.use_node_feature_api is not None:
        yield "flags.useNodeFeatureAPI belongs to GPU feature discovery and has no effect here"
    if config.resources.migs and config.flags.mig_strategy == "none":
        yield 'resources.migs has no effect: flags.migStrategy is "none"'
    mps = config.sharing.mps
    if mps is not None and not (mps.resources or mps.sizes):
        yield "sharing.mps has neither resources nor sizes: nothing is shared by MPS"
    yield from _of_isolations(config, overridden)
    yield from _of_protocol_3(config)
    yield from _by_claim(config)
    plugin = config.flags.plugin
    if plugin.nvidia_ctk_path != PluginFlags.model_fields["nvidia_ctk_path"].default and not plugin.uses_cdi:
        yield "flags.plugin.nvidiaCTKPath has no effect: flags.plugin.deviceListStrategy names no CDI devices"


def _of_isolations(config: Config, overridden: Collection[Path]) -> Iterator[str]:
    for index, entry in enumerate(config.sharing.memory.resources if config.sharing.memory else ()):
        if not limits_compute(entry.isolation) and entry.compute != "proportional":
            isolation = ", ".join(entry.isolation)
            yield f'sharing.memory.resources[{index}].compute has no effect: isolation is "{isolation}"'
    if config.driver_limits is not None and not config.sharing.includes_driver:
        yield "driverLimits has no effect: no entry of sharing has driver as isolation"
    protocol = ("flags", "mpsProtocol")
    if config.flags.mps_protocol == WITH_NAMESPACES and not config.sharing.includes_mps and protocol not in overridden:
        yield (
            f"{spelled(protocol)} has no effect, unless a label of the node asks for MPS: no entry of sharing has mps "
            "or driver+mps as isolation"
        )
    if config.hami_core != HamiCore() and not any("hami-core" in each for each in config.sharing.isolations):
        yield "hamiCore has no effect: no entry of sharing has hami-core as isolation"


def _of_protocol_3(config: Config) -> Iterator[str]:
    if config.flags.mps_protocol != WITH_NAMESPACES:
        return
    pipe = FilePath(config.flags.mps_root) / "pipe"
    if config.sharing.includes_mps and (reason := why_too_long(pipe, LONGEST_SOCKET, "the pipe directory of MPS")):
        yield f"flags.mpsRoot is too long for flags.mpsProtocol 3, with which MPS cannot start: {reason}"
    for index, entry in enumerate(config.sharing.memory.resources if config.sharing.memory else ()):
        if entry.allow_multi_gpu_shares:
            yield (
                f"sharing.memory.resources[{index}].allowMultiGPUShares has no effect: with flags.mpsProtocol 3, "
                "shares on several GPUs are always admitted"
            )


def _by_claim(config: Config) -> Iterator[str]:
    if config.dra is not None and config.dra.default is not None and config.sharing.memory is None:
        yield "dra.default has no effect: sharing.memory shares no GPU"

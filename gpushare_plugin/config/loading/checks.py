"""What is wrong between settings that are right one by one, and what is accepted but not served."""

from collections.abc import Iterator

from gpushare_plugin.config.places import Places
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import Config, PluginFlags
from gpushare_plugin.foundation.errors import Path, Problem


def problems(config: Config, places: Places) -> Iterator[Problem]:
    """Find names that cannot be advertised, or are advertised twice, and what MPS cannot share."""
    taken: dict[str, Path] = {}
    for path, name in _advertised(config):
        try:
            names.extended_resource(name)
        except ValueError as error:
            yield Problem(path, f"with renameByDefault: {error}")
        first = taken.setdefault(name, path)
        if first != path:
            yield Problem(path, f'found "{name}", taken already at {places.describe(first)}; give one another name')
    yield from _mig_under_mps(config)


def notices(config: Config) -> Iterator[str]:
    """Name settings that are accepted for NVIDIA's sake and change nothing here."""
    if config.flags.gfd is not None:
        yield "flags.gfd belongs to GPU feature discovery and changes nothing here"
    if config.flags.use_node_feature_api is not None:
        yield "flags.useNodeFeatureAPI belongs to GPU feature discovery and changes nothing here"
    if config.resources.migs and config.flags.mig_strategy == "none":
        yield 'resources.migs matches nothing, for flags.migStrategy is "none"'
    if config.imex.channel_ids or config.imex.required:
        yield "imex is not served yet: no channel is added to containers"
    mps = config.sharing.mps
    if mps is not None and not (mps.resources or mps.sizes):
        yield "sharing.mps has neither resources nor sizes: nothing is shared by MPS"
    for index, entry in enumerate(config.sharing.memory.resources if config.sharing.memory else ()):
        if entry.isolation == "none" and entry.compute != "proportional":
            yield f'sharing.memory.resources[{index}].compute limits nothing, for isolation is "none"'
    if config.flags.plugin.nvidia_ctk_path != PluginFlags.model_fields["nvidia_ctk_path"].default:
        yield "nvidiaCTKPath changes nothing yet"


def _mig_under_mps(config: Config) -> Iterator[Problem]:
    instances = {pattern.name for pattern in config.resources.migs}
    for index, entry in enumerate(config.sharing.mps.resources if config.sharing.mps else ()):
        if names.is_mig(entry.name) or entry.name in instances:
            yield Problem(
                ("sharing", "mps", "resources", index, "name"),
                f'found "{entry.name}", MIG instances, and MPS shares whole GPUs only; use sharing.timeSlicing',
            )


def _advertised(config: Config) -> Iterator[tuple[Path, str]]:
    """Give every name that `sharing` advertises, with the path of what makes it so."""
    sharing = config.sharing
    for key, replicated in (("timeSlicing", sharing.time_slicing), ("mps", sharing.mps)):
        if replicated is not None:
            for index, resource in enumerate(replicated.resources):
                path: Path = ("sharing", key, "resources", index, "rename" if resource.rename else "name")
                yield path, replicated.advertised_name(resource)
    if sharing.mps is not None:
        # Several entries can cut their GPUs into the same size: those are one resource.
        sizes: dict[str, Path] = {}
        for index, devices in enumerate(sharing.mps.sizes):
            for place, each in enumerate(devices.slices):
                sizes.setdefault(each.name, ("sharing", "mps", "sizes", index, "slices", place, "size"))
        for name, where in sizes.items():
            yield where, name
    if sharing.memory is not None:
        for index, entry in enumerate(sharing.memory.resources):
            yield ("sharing", "memory", "resources", index, "name"), entry.name

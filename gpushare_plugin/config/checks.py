"""What is wrong between settings that are right one by one, and what is accepted but not served."""

from collections.abc import Iterator

from gpushare_plugin.config import names
from gpushare_plugin.config.places import Places
from gpushare_plugin.config.schema import Config, Flags
from gpushare_plugin.errors import Path, Problem


def problems(config: Config, places: Places) -> Iterator[Problem]:
    """Find names that cannot be advertised, or are advertised twice."""
    taken: dict[str, Path] = {}
    for path, name in _advertised(config):
        try:
            names.extended_resource(name)
        except ValueError as error:
            yield Problem(path, f"with renameByDefault: {error}")
        first = taken.setdefault(name, path)
        if first != path:
            yield Problem(path, f'found "{name}", taken already at {places.describe(first)}; give one another name')


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
    if config.sharing.mps is not None:
        yield "sharing.mps is not served yet: a node with GPUs refuses this file"
    for key in ("mps_root", "nvidia_ctk_path"):
        section = config.flags if key in Flags.model_fields else config.flags.plugin
        field = type(section).model_fields[key]
        if getattr(section, key) != field.default:
            yield f"{field.alias} changes nothing yet"


def _advertised(config: Config) -> Iterator[tuple[Path, str]]:
    """Give every name that `sharing` advertises, with the path of what makes it so."""
    sharing = config.sharing
    for key, replicated in (("timeSlicing", sharing.time_slicing), ("mps", sharing.mps)):
        if replicated is not None:
            for index, resource in enumerate(replicated.resources):
                path: Path = ("sharing", key, "resources", index, "rename" if resource.rename else "name")
                yield path, replicated.advertised_name(resource)
    if sharing.memory is not None:
        for index, entry in enumerate(sharing.memory.resources):
            yield ("sharing", "memory", "resources", index, "name"), entry.name

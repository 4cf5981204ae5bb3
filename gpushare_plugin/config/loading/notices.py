"""What is accepted in a config and changes nothing."""

from collections.abc import Iterator

from gpushare_plugin.config.schema.sections import Config, PluginFlags


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

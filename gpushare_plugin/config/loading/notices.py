"""Notices about settings that are accepted and have no effect."""

from collections.abc import Iterator

from gpushare_plugin.config.schema.sections import Config, PluginFlags


def notices(config: Config) -> Iterator[str]:
    """Yield a notice for each setting that is accepted and has no effect."""
    if config.flags.gfd is not None:
        yield "flags.gfd belongs to GPU feature discovery and has no effect here"
    if config.flags.use_node_feature_api is not None:
        yield "flags.useNodeFeatureAPI belongs to GPU feature discovery and has no effect here"
    if config.resources.migs and config.flags.mig_strategy == "none":
        yield 'resources.migs has no effect: flags.migStrategy is "none"'
    mps = config.sharing.mps
    if mps is not None and not (mps.resources or mps.sizes):
        yield "sharing.mps has neither resources nor sizes: nothing is shared by MPS"
    for index, entry in enumerate(config.sharing.memory.resources if config.sharing.memory else ()):
        if entry.isolation == "none" and entry.compute != "proportional":
            yield f'sharing.memory.resources[{index}].compute has no effect: isolation is "none"'
    if config.flags.plugin.nvidia_ctk_path != PluginFlags.model_fields["nvidia_ctk_path"].default:
        yield "flags.plugin.nvidiaCTKPath has no effect yet"

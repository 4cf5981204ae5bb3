"""The config chosen by the labels of a node, with the other requests of the labels."""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.directives import CONFIG, Labels, apply_labels, spelled_label
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.sources.choice import Configs


def load_effective_config(
    labels: Labels, configs: Configs, *, partitioning: bool = False, starting: bool = False
) -> Loaded:
    """Return the effective config of a node with these labels, and notices about requests without effect.

    `partitioning` has the same meaning as for `apply_labels`.

    The label `nvidia.com/device-plugin.config` may name a config that is missing or unusable. The result then has a
    problem, and the caller keeps the current config. While `starting`, there is no current config: the result
    then has a notice, and the config to use if none is requested.
    """
    name = labels.get(CONFIG) or None
    notices = []
    if name is not None and starting and name not in configs.names():
        notices.append(f"{spelled_label(CONFIG, name)}: there is no such config; ignoring this label")
        name = None
    loaded = configs.load(name)
    if name is not None and starting and loaded.problems:
        (first, *_) = loaded.lines(loaded.problems)
        notices.append(f"{spelled_label(CONFIG, name)}: this config cannot be used ({first}); ignoring this label")
        name, loaded = None, configs.load(None)
    if loaded.config is None:
        return loaded
    effective, more = apply_labels({**labels, CONFIG: name or ""}, loaded.config, partitioning=partitioning)
    return replace(loaded, effective=effective, notices=(*loaded.notices, *notices, *more))

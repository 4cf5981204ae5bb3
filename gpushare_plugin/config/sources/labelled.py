"""The config that the labels of a node choose, with what else they request."""

from gpushare_plugin.config.directives import CONFIG, Labels, apply_labels, spelled_label
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.foundation.structs import replace


def load_effective_config(
    labels: Labels, configs: Configs, *, partitioning: bool = False, starting: bool = False
) -> Loaded:
    """Return the effective config of a node with these labels, with notices of requests that have no effect.

    `partitioning` is as in `apply_labels`.

    A label that names a config which does not exist, or cannot be used, is a problem of the result, so that the current
    config stays. While `starting` there is none, and the node starts as if it had no such label.
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

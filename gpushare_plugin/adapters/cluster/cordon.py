"""Which GPUs people take out by hand, by an annotation of the Node or by Aliyun's ConfigMap; pure."""

import re
from collections.abc import Iterable, Mapping, Sequence

from gpushare_plugin.adapters.cluster import records
from gpushare_plugin.config.spelling import shown
from gpushare_plugin.foundation.text import some_of
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.health import Cordon

_MOST_NAMES = 10
"""Names that a notice repeats: anybody may write thousands."""


def cordon(node: str, annotation: str, configmap: Mapping[str, str] | None, gpus: Iterable[Gpu]) -> Cordon:
    """Return what the values of the annotation and of the ConfigMap, None where there is none, take out on a node.

    Both list indices or UUIDs, with commas, spaces or lines between.
    """
    known = {name: gpu.uuid for gpu in gpus for name in (gpu.uuid, str(gpu.index))}
    there = f"ConfigMap {records.CORDON_NAMESPACE}/{records.cordon_configmap(node)}"
    out: dict[str, str] = {}
    notices = []
    for who, text in (
        (f"annotation {records.UNHEALTHY_GPUS}", annotation),
        (there, (configmap or {}).get(records.CORDON_KEY, "")),
    ):
        named = dict.fromkeys(filter(None, re.split(r"[\s,]+", text)))
        out |= {known[name]: f"taken out by {who}" for name in named if name in known}
        if unknown := [name for name in named if name not in known]:
            notices.append(f"{who} names no GPU of this node: {_some(unknown)}; expected are indices or UUIDs")
    if configmap is not None and configmap.keys() != {records.CORDON_KEY}:
        found = _some(sorted(configmap)) or "none"
        notices.append(f"{there} takes GPUs out by its key {records.CORDON_KEY} and no other; found keys: {found}")
    return Cordon(out, tuple(notices))


def _some(names: Sequence[str]) -> str:
    return some_of(names, _MOST_NAMES, shown)

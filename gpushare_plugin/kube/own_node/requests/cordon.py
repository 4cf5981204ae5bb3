"""The GPUs cordoned by people, in an annotation of the Node or in Aliyun's ConfigMap; pure."""

from collections.abc import Iterable, Mapping, Sequence

from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.schema.spelling import shown
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.health import Cordon
from gpushare_plugin.kube import names

_MOST_NAMES = 10
"""Largest number of names in a warning: a list may have thousands."""


def cordon(node: str, annotation: str, configmap: Mapping[str, str] | None, gpus: Iterable[Gpu]) -> Cordon:
    """Return the cordon of a node, from the value of the annotation and the data of the ConfigMap.

    Both list indices or UUIDs, separated by commas, spaces or line breaks. `configmap` is None without a ConfigMap. An
    unknown GPU becomes a notice of the cordon.
    """
    known = {name: gpu.uuid for gpu in gpus for name in (gpu.uuid, str(gpu.index))}
    there = f"ConfigMap {names.CORDON_NAMESPACE}/{names.cordon_configmap(node)}"
    cordoned: dict[str, str] = {}
    notices = []
    for who, text in (
        (f"annotation {names.UNHEALTHY_GPUS}", annotation),
        (there, (configmap or {}).get(names.CORDON_KEY, "")),
    ):
        named = names.cordoned_gpus(text)
        cordoned |= {known[name]: f"cordoned by {who}" for name in named if name in known}
        if unknown := [name for name in named if name not in known]:
            notices.append(f"{who} matches no GPU of this node: {_some(unknown)}; expected indices or UUIDs")
    if configmap is not None and configmap.keys() != {names.CORDON_KEY}:
        found = _some(sorted(configmap)) or "none"
        notices.append(f"{there} cordons GPUs by its key {names.CORDON_KEY} only; found keys: {found}")
    return Cordon(cordoned, tuple(notices))


def _some(given: Sequence[str]) -> str:
    return some_of(given, _MOST_NAMES, shown)

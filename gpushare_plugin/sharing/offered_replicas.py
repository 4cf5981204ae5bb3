"""What to say to people of the replicas that the device plugin offers; claims count replicas in another way."""

from collections.abc import Iterator
from math import ceil

from gpushare_plugin.core.resource import Resource

_PODS = 110
"""The pods that a kubelet runs by default (`maxPods` of KubeletConfiguration, kubelet.config.k8s.io/v1beta1)."""
_MOST_USED = 10 * _PODS
"""Replicas of a resource beyond which no node uses all, with room for more pods and for several containers in each."""


def warnings(resource: Resource) -> Iterator[str]:
    """Yield warnings about whole GPUs beside the replicas of a resource, and about more replicas than pods can use."""
    by_gpu = resource.units.by_gpu
    kinds = {units[0].form.kind for units in by_gpu.values()}
    if "replica" not in kinds:
        return
    if "whole" in kinds:
        yield (
            f"{resource.name} has both replicas and whole GPUs: a pod cannot choose between them; "
            "set rename (or renameByDefault) to give them different names"
        )
    if (count := len(resource.units)) > _MOST_USED:
        yield (
            f"{resource.name} has {count:,} replicas on this node, more than its pods can use: a kubelet runs {_PODS} "
            "pods unless its maxPods says otherwise, and each container needs one replica. The kubelet is sent and "
            f"keeps all of them; set fewer replicas, such as {ceil(_PODS / len(by_gpu))} for each GPU"
        )

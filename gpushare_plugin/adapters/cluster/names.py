"""Names on a Node and beside it that others know; what the annotation `gpushare/gpus` holds: `account.node_record`.

Keys of our own begin with `gpushare/`, a prefix that is not a domain of anybody else.
"""

import re

FIELD_MANAGER = "gpushare"
"""Our name in server-side apply; what this manager owns on a Node is ours to remove."""

UNHEALTHY_GPUS = "gpushare/unhealthy-gpus"
"""Annotation that people write: GPUs to cordon, by index or UUID, separated by commas."""

GPU_COUNT = "aliyun.com/gpu-count"
"""Extended resource in the node's status: how many GPUs it has, as Aliyun's tools expect."""

READY_CONDITION = "GpuSharingReady"
"""Condition of the Node: whether new pods can get its GPUs."""

EXTENDER_LEASE = "gpushare-extender"
"""Lease of the scheduler extenders; its annotation `gpushare/placement` is the default policy of the one that leads."""

CLIENTS = "gpushare/clients"
VERIFIED, ANYONE = "verified", "anyone"
"""Annotation of that Lease: whether the extender answers those alone who prove by a certificate who they are."""

WHAT_ANYONE_CAN_DO = (
    "the extender does not verify who asks it: any program that reaches its port, such as one in a pod of the cluster, "
    "can see which pods have GPUs, and have pods that wait for GPUs bound to nodes that kube-scheduler did not choose"
)

PARTITIONER_LEASE = "gpushare-partitioner"
"""Lease of the partitioners; its annotations `gpushare/placement` and `PATIENCE` say how the leading one decides."""

PATIENCE = "gpushare/patience"
"""Annotation of that Lease: seconds that a pod has to take its slices."""

NEEDS_MPS = "gpushare/mps"
"""Label, `"true"` or not there: `gpushare mps` has work on this node; the chart's DaemonSet of it selects these."""

CORDON_NAMESPACE = "kube-system"
CORDON_KEY = "gpus"
"""Where Aliyun's ConfigMap that cordons GPUs is, and the key in it that lists them."""


_CORDON_PREFIX = "unhealthy-gpu-"


def cordon_configmap(node: str) -> str:
    """Return the name of the ConfigMap that cordons GPUs of a node."""
    return f"{_CORDON_PREFIX}{node}"


def cordoned_node(configmap: str) -> str | None:
    """Return the node whose GPUs a ConfigMap of this name cordons, None for another ConfigMap."""
    return configmap.removeprefix(_CORDON_PREFIX) if configmap.startswith(_CORDON_PREFIX) else None


def cordoned_gpus(text: str) -> list[str]:
    """Return the GPUs that the annotation or the ConfigMap lists: by commas, spaces or line breaks, each once."""
    return list(dict.fromkeys(filter(None, re.split(r"[\s,]+", text))))

"""Names of labels, annotations, resources and objects that people and programs outside gpushare also use.

The module `ledger.node_record` describes the content of the annotation `gpushare/gpus`. Keys of gpushare begin with
`gpushare/`, a prefix that is nobody's domain.
"""

import re

FIELD_MANAGER = "gpushare"
"""The name of gpushare in server-side apply; gpushare may remove every field of a Node owned by this manager."""

UNHEALTHY_GPUS = "gpushare/unhealthy-gpus"
"""Annotation written by people: the GPUs to cordon, by index or UUID, separated by commas."""

GPU_COUNT = "aliyun.com/gpu-count"
"""Extended resource in the status of a node: the number of GPUs, for Aliyun's tools."""

READY_CONDITION = "GpuSharingReady"
"""Condition of a Node: whether new pods can get GPUs of the node."""

EXTENDER_LEASE = "gpushare-extender"
"""Lease of the scheduler extenders; its annotation `gpushare/placement` is the leader's default policy."""

CLIENTS = "gpushare/clients"
VERIFIED, ANYONE = "verified", "anyone"
"""Annotation of the extenders' Lease, and its values: the extender answers clients with a certificate, or anyone."""

WHAT_ANYONE_CAN_DO = (
    "the extender does not verify who asks it: any program that reaches its port, such as one in a pod of the cluster, "
    "can see which pods have GPUs, and have pods that wait for GPUs bound to nodes that kube-scheduler did not choose"
)
"""The risk of an extender that answers anyone, in words for people."""

PARTITIONER_LEASE = "gpushare-partitioner"
"""Lease of the partitioners; its annotations `gpushare/placement` and `PATIENCE` name the settings of the leader."""

PATIENCE = "gpushare/patience"
"""Annotation of the partitioners' Lease: the time for a pod to take its slices, in seconds."""

NEEDS_MPS = "gpushare/mps"
"""Label with the value `"true"` on nodes with work for `gpushare mps`; the chart's MPS DaemonSet selects the label."""

ISOLATION = "gpushare/isolation"
"""Label with the isolation that the node has of those that a config lists, or `mixed` where its GPUs differ."""

CORDON_NAMESPACE = "kube-system"
CORDON_KEY = "gpus"
"""The namespace of Aliyun's ConfigMap for cordoned GPUs, and the key with the list of GPUs."""


_CORDON_PREFIX = "unhealthy-gpu-"


def cordon_configmap(node: str) -> str:
    """Return the name of the ConfigMap for cordoned GPUs of a node."""
    return f"{_CORDON_PREFIX}{node}"


def cordoned_node(configmap: str) -> str | None:
    """Return the node named by a ConfigMap for cordoned GPUs, None for any other ConfigMap."""
    return configmap.removeprefix(_CORDON_PREFIX) if configmap.startswith(_CORDON_PREFIX) else None


def cordoned_gpus(text: str) -> list[str]:
    """Return the GPUs in the text of the annotation or ConfigMap, without duplicates.

    Commas, spaces or line breaks separate the GPUs.
    """
    return list(dict.fromkeys(filter(None, re.split(r"[\s,]+", text))))

"""All rows of the dashboard, in the order in which people look: from the cluster to single pods, then programs."""

from generators.dashboard.gpus import CLUSTER, GPUS, NODES, SPECIAL
from generators.dashboard.panel import Panel
from generators.dashboard.programs import CLAIMS, EXTENDER, PARTITIONER
from generators.dashboard.teams import FREE, NAMESPACES, PODS

ROWS: dict[str, tuple[Panel, ...]] = {
    "Cluster": CLUSTER,
    "Namespaces": NAMESPACES,
    "What is free": FREE,
    "MIG, MPS, faulty and idle GPUs": SPECIAL,
    "Nodes": NODES,
    "GPUs": GPUS,
    "Pods": PODS,
    "Claims": CLAIMS,
    "Scheduler extender": EXTENDER,
    "Partitioner": PARTITIONER,
}
"""The panels, row by row."""

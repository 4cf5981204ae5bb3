"""Everything that is measured, in the order of the table."""

from collections.abc import Awaitable, Callable, Mapping

from benchmarks.effort import Effort
from benchmarks.figures import Figure
from benchmarks.measures import (
    admission,
    allocate,
    claims,
    device_list,
    extender,
    fault,
    idle,
    idle_claims,
    inspect,
    kubelet_restart,
    new_claims,
    packing,
    partition,
    partition_round,
    pauses,
    preferred,
    resident,
    resource_slices,
    restart,
    retiring,
    start,
    succession,
    takeover,
    tenant,
    usage,
    web,
)

Measure = Callable[[Effort], Awaitable[list[Figure]]]

MEASURES: Mapping[str, Measure] = {
    "allocate": allocate.measure,
    "preferred": preferred.measure,
    "claims": claims.measure,
    "new-claims": new_claims.measure,
    "resource-slices": resource_slices.measure,
    "idle-claims": idle_claims.measure,
    "retiring": retiring.measure,
    "list": device_list.measure,
    "fault": fault.measure,
    "start": start.measure,
    "restart": restart.measure,
    "succession": succession.measure,
    "kubelet-restart": kubelet_restart.measure,
    "idle": idle.measure,
    "resident": resident.measure,
    "usage": usage.measure,
    "admission": admission.measure,
    "extender": extender.measure,
    "packing": packing.measure,
    "takeover": takeover.measure,
    "inspect": inspect.measure,
    "web": web.measure,
    "partition-round": partition_round.measure,
    "partition": partition.measure,
    "pauses": pauses.measure,
    "tenant": tenant.measure,
}
"""What to measure, by the name that `make bench ONLY=` takes."""

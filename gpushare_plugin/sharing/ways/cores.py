"""Compute in percent: GPUs shared by memory offer 100 units each, and a container gets units of the GPU of its memory.

The resource is `aliyun.com/gpu-core.percentage` of Alibaba Cloud's ACK. Memory brings the GPU into the container,
compute only the variable of the limit: only one resource of a container may make a GPU visible. A container gets
compute of several GPUs only if a scheduler has promised the GPUs to the container.
"""

from collections.abc import Mapping, Sequence

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.findings import Findings
from gpushare_plugin.config.schema import names
from gpushare_plugin.core.chooser import OneGpu, refuse_several_gpus
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.core.grant import Allocation, Grant
from gpushare_plugin.core.policies import PolicyName
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.core.unit import Form, Unit
from gpushare_plugin.sharing.ways.way import Entry, by_place

UNITS = 100
"""The units of compute of a GPU, one unit for each percent."""


def cores_resource(
    entries: Sequence[tuple[Entry, PolicyName]], short_uuids: Mapping[str, str], findings: Findings
) -> Resource | None:
    """Return the resource for the compute of GPUs of the entries, None if compute cannot be limited on any GPU.

    The placement of the first entry is the placement of the resource. GPUs with an isolation that cannot limit compute
    are left out, and added to `findings`.
    """
    variables: dict[Gpu, str] = {}
    for entry, _ in entries:
        limited = {gpu: variable for gpu in entry.gpus if (variable := entry.isolation.compute_variable(gpu))}
        variables |= limited
        if unlimited := [gpu.label for gpu in entry.gpus if gpu not in limited]:
            findings.notice(
                f"{names.CORES} is not offered on GPU {', '.join(unlimited)}: {entry.isolation.name} does not limit "
                "compute there"
            )
    if not variables:
        return None
    return Resource(
        names.CORES,
        Units({gpu: cores_units(gpu, short_uuids[gpu.uuid]) for gpu in by_place(variables)}),
        OneGpu(entries[0][1]),
        CoresGranter({gpu.uuid: variable for gpu, variable in variables.items()}),
        role="cores",
    )


class CoresGranter(Struct, frozen=True):
    """Limits the compute of a container to the allocated percentage."""

    variables: Mapping[str, str]
    """The variable of the compute limit, which depends on the isolation, by GPU UUID."""

    def grant(self, allocation: Allocation) -> Grant:
        """Return the compute limit, and no GPU.

        One limit counts for all GPUs of a container, so the smallest percentage is the limit. Raises PlacementError for
        units on several GPUs without a promise.
        """
        gpus = allocation.gpus
        if not allocation.recipient.promised:
            refuse_several_gpus(allocation.resource, {each.gpu.uuid: each.units for each in gpus})
        percent = str(min(each.units for each in gpus))
        return Grant(environment={self.variables[each.gpu.uuid]: percent for each in gpus})


def cores_units(gpu: Gpu, short_uuid: str) -> list[Unit]:
    """Return the units of compute of `gpu`."""
    return Form.cores(short_uuid).units(gpu.uuid, gpu.numa_node, range(UNITS))

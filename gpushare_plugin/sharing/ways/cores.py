"""Compute in percent: GPUs shared by memory offer 100 units each, of which a container gets those of its memory's GPU.

The resource is that of Alibaba Cloud's ACK, `aliyun.com/gpu-core.percentage`. Memory brings the GPU into the container,
compute only the variable that limits it: of several resources of a container only one may make a GPU visible. Only
where a scheduler has promised a container parts of several GPUs, it gets these.
"""

from collections.abc import Mapping, Sequence

from gpushare_plugin.config.schema import names
from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.choice.chooser import OneGpu, refuse_several_gpus
from gpushare_plugin.model.choice.policies import PolicyName
from gpushare_plugin.model.gpu import Gpu
from gpushare_plugin.model.grant import Allocation, Grant
from gpushare_plugin.model.resource import Resource, Units
from gpushare_plugin.model.unit import Form, Unit
from gpushare_plugin.sharing.findings import Findings
from gpushare_plugin.sharing.ways.way import Entry, by_place

UNITS = 100
"""Units of compute of a GPU: each stands for one percent."""


def cores_resource(
    entries: Sequence[tuple[Entry, PolicyName]], short_uuids: Mapping[str, str], findings: Findings
) -> Resource | None:
    """Return the compute of the GPUs of entries, None where nothing can limit it; the first placement is that of all.

    GPUs whose isolation cannot limit compute are left out, and added to the findings.
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
    """Limits a container to its percentage, by the variable of the GPU's isolation; `variables` are by UUID."""

    variables: Mapping[str, str]

    def grant(self, allocation: Allocation) -> Grant:
        """Return the limit, and no GPU; one limit counts for all GPUs of a container, so it is the smallest."""
        gpus = allocation.gpus
        if not allocation.recipient.promised:
            refuse_several_gpus(allocation.resource, {each.gpu.uuid: each.units for each in gpus})
        percent = str(min(each.units for each in gpus))
        return Grant(environment={self.variables[each.gpu.uuid]: percent for each in gpus})


def cores_units(gpu: Gpu, short_uuid: str) -> list[Unit]:
    """Return the units of compute of `gpu`."""
    return Form.cores(short_uuid).units(gpu.uuid, gpu.numa_node, range(UNITS))

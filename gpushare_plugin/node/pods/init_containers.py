"""The holdings of init containers that run: the kubelet's pod-resources does not show them, its checkpoint does.

The containers of the pod wait meanwhile, and get units of the init containers (pkg/kubelet/cm/devicemanager in
Kubernetes, `podDevices` and reusable devices). So the share of the init container is the one that counts.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping

from gpushare_plugin.core.holding import Holding, Holdings
from gpushare_plugin.core.usage import GpuUsage

ContainerIds = Mapping[tuple[str, str, str], str]
"""The IDs of containers, by namespace, name of the pod and name of the container."""


async def with_init_containers(
    holdings: Holdings,
    samples: Iterable[GpuUsage],
    ids: ContainerIds,
    recorded: Callable[[], Awaitable[Holdings | None]],
) -> Holdings:
    """Return holdings with those of init containers that use a GPU in place of those of containers that wait for them.

    `holdings` are those that pod-resources shows, with the IDs of containers that have started. `recorded` reads those
    of the checkpoint, and is called only where an init container uses a GPU.
    """
    shown = {(each.namespace, each.pod, each.container) for each in holdings}
    using = {process.owner.container_id for sample in samples for process in sample.processes or ()} - {""}
    init = {who: id_ for who, id_ in ids.items() if id_ in using and who not in shown}
    pods = {each.uid: each for each in holdings if not each.container_id and _pod(each) in {who[:2] for who in init}}
    if not pods:
        return holdings
    running = [
        each._replace(namespace=pod.namespace, pod=pod.pod, container_id=id_)
        for each in await recorded() or ()
        if (pod := pods.get(each.uid)) is not None and (id_ := init.get((*_pod(pod), each.container))) is not None
    ]
    instead = {each.uid for each in running}
    return (*(each for each in holdings if each.container_id or each.uid not in instead), *running)


def _pod(holding: Holding) -> tuple[str, str]:
    return holding.namespace, holding.pod

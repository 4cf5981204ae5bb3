"""Pods with promises, without any API server."""

from collections.abc import Mapping

from gpushare_plugin.base.published import Published
from gpushare_plugin.ledger.pod import Pod, Share
from gpushare_plugin.ledger.request import ContainerKind, ContainerRequest, PodRequest
from tests.nodes import a_gpu
from tests.unit.sharing.settings import GPU_MEM

Asked = tuple[ContainerKind, int, Mapping[int, int] | None]
"""What kind of container asks for how many units, and how many of each GPU it was promised."""


def a_pod(uid: str, *containers: Asked) -> Pod:
    """Return a bound pod whose containers are c0, c1 and so on."""
    request = PodRequest(
        tuple(
            ContainerRequest(f"c{number}", kind, ((GPU_MEM, size),))
            for number, (kind, size, _) in enumerate(containers)
        )
    )
    shares = tuple(
        Share(f"c{number}", GPU_MEM, a_gpu(gpu).uuid, units)
        for number, (_, _, promise) in enumerate(containers)
        for gpu, units in (promise or {}).items()
    )
    return Pod(uid, "default", f"pod-{uid}", request, node="node", promise=shares or None)


class Seen:
    """A watch in the hands of a test."""

    def __init__(self, *pods: Pod) -> None:
        """Have shown these pods, and be alive."""
        self.in_order: tuple[Pod, ...] = pods
        self.live = True
        self.changed = Published(0)

    def show(self, *pods: Pod) -> None:
        """Show these pods from now on."""
        self.in_order = pods
        self.changed.publish(self.changed.value + 1)

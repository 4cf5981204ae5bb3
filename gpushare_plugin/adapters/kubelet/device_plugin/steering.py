"""What somebody who knows pods can say of the kubelet's calls, which name none."""

from collections.abc import Collection, Sequence
from typing import Protocol

from gpushare_plugin.model.grant import UNKNOWN, Recipient
from gpushare_plugin.model.resource import Resource, UnitsOf


class Steering(Protocol):
    """Knows which pods may be asking, and what a scheduler has promised them."""

    async def catch_up(self, resource: Resource, size: int) -> None:
        """Wait a moment where no pod is known that could ask for so many units; other calls are answered meanwhile."""
        ...

    def promises(self, resource: Resource, size: int) -> Sequence[UnitsOf]:
        """Return what was promised to the pods that could ask for so many units, the likeliest first."""
        ...

    def recipient(self, resource: Resource, ids: Collection[str]) -> Recipient:
        """Return what is known of the pod that the kubelet gives these units to."""
        ...

    def allocated(self, resource: Resource, ids: Collection[str]) -> None:
        """Take note that a container has these units now."""
        ...


class Unsteered:
    """Knows no pods: the node decides alone."""

    async def catch_up(self, resource: Resource, size: int) -> None:
        """Return at once."""

    def promises(self, resource: Resource, size: int) -> Sequence[UnitsOf]:  # noqa: ARG002 - as a `Steering` does
        """Return that nothing is promised."""
        return ()

    def recipient(self, resource: Resource, ids: Collection[str]) -> Recipient:  # noqa: ARG002 - as a `Steering` does
        """Return that the pod is not known."""
        return UNKNOWN

    def allocated(self, resource: Resource, ids: Collection[str]) -> None:
        """Keep nothing."""

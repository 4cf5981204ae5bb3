"""The interface to a source of facts about pods: the kubelet's calls name no pod."""

from collections.abc import Collection, Sequence
from typing import Protocol

from gpushare_plugin.core.grant import UNKNOWN, Recipient
from gpushare_plugin.core.resource import Resource, UnitsOf


class Steering(Protocol):
    """Knows the pods that may be asking, and the promises of a scheduler to these pods."""

    async def catch_up(self, resource: Resource, size: int) -> None:
        """Wait a moment if no known pod could ask for `size` units; other calls are answered meanwhile."""
        ...

    def promises(self, resource: Resource, size: int) -> Sequence[UnitsOf]:
        """Return the units promised to the pods that could ask for `size` units, the likeliest promise first."""
        ...

    def recipient(self, resource: Resource, ids: Collection[str]) -> Recipient:
        """Return the known facts about the pod to which the kubelet gives the units `ids`."""
        ...

    def allocated(self, resource: Resource, ids: Collection[str]) -> None:
        """Take note that a container has the units `ids` now."""
        ...


class Unsteered:
    """Knows no pods and no promises: the node decides alone."""

    async def catch_up(self, resource: Resource, size: int) -> None:
        """Return at once."""

    def promises(self, resource: Resource, size: int) -> Sequence[UnitsOf]:  # noqa: ARG002 - as in `Steering`
        """Return no promises."""
        return ()

    def recipient(self, resource: Resource, ids: Collection[str]) -> Recipient:  # noqa: ARG002 - as in `Steering`
        """Return `UNKNOWN`, for an unknown pod."""
        return UNKNOWN

    def allocated(self, resource: Resource, ids: Collection[str]) -> None:
        """Keep nothing."""

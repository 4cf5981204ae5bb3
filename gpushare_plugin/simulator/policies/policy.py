"""The interface of the policies that are compared."""

from typing import Protocol

from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import Spot


class ComparedPolicy(Protocol):
    """A policy that places pods on the rows of a cluster; without a memory unless a policy says otherwise."""

    def see(self, kind: PodKind, /) -> None:  # noqa: ARG002 - for policies with a memory
        """Take note of a pod that is to be placed, once for each pod."""
        return

    def choose(self, kind: PodKind, /) -> Spot | None:
        """Return where a pod goes; None if the pod fits nowhere."""
        ...

    def changed(self, row: int, /) -> None:  # noqa: ARG002 - for policies with a memory
        """Take note that what is free on a node has changed."""
        return

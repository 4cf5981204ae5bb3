"""A pod as the account knows it: who it is, what it asks for, where it is, and what its annotations say of its GPUs."""

from dataclasses import dataclass
from typing import NamedTuple

from gpushare_plugin.model.account.request import PodRequest


class Share(NamedTuple):
    """Units of one GPU in one resource that a container has; `gpu` is a UUID, or an index in Aliyun's annotations."""

    container: str
    resource: str
    gpu: str
    units: int


Shares = tuple[Share, ...]


@dataclass(frozen=True, slots=True)
class AccountPod:
    """A pod; it holds units while it is bound to `node` and has not `ended`.

    `owner` is the UID of its controller, `priority` decides who can be evicted for it. `ending` is whether it is being
    deleted, `nominated` the node where others are evicted for it. What annotations say, None where
    they say nothing that can be read: `allocation` (the node's daemon), `promise` (the scheduler extender, for this
    node), `indexes` (Aliyun's and ACK's, GPUs by their index). `occupancy` checks how far they can be believed.
    """

    uid: str
    namespace: str
    name: str
    request: PodRequest
    node: str | None = None
    owner: str | None = None
    priority: int = 0
    ended: bool = False
    ending: bool = False
    nominated: str | None = None
    allocation: Shares | None = None
    promise: Shares | None = None
    indexes: Shares | None = None

    @property
    def holds_on(self) -> str | None:
        """The node where it has units: it is bound and has not ended. A pod that is being deleted still has them."""
        return self.node if self.request.amounts and not self.ended else None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.namespace}/{self.name}"


def has_ended(phase: str, *, running: bool) -> bool:
    """Return whether a pod has stopped for good; `running` is whether a status shows a container that runs.

    A deletion timestamp says nothing of that: containers run on through the grace period, and on a lost node beyond it.
    """
    return phase in {"Succeeded", "Failed"} and not running

"""The cluster for display to people where the policy is `packing`: what a pod would lose on each node."""

from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import pod_of
from gpushare_plugin.kube.whole_cluster.overview import Overview
from gpushare_plugin.ledger.packed import NodeLoss, PackedCluster
from gpushare_plugin.ledger.standing import ExtenderStanding
from gpushare_plugin.ledger.verdicts import Fit


class PackedOverview(Overview):
    """An overview of a cluster, with the CPU and memory of all pods."""

    def __init__(self, extender: ExtenderStanding) -> None:
        """Start empty, with what the extender has learned."""
        super().__init__(extender.policy)
        self._packed = PackedCluster(self.account)
        self._packed.recall(extender.lesson)

    def put_pod(self, found: ApiPod) -> None:
        """Take in the present state of a Pod; a Pod without GPUs counts too, because it takes CPU and memory."""
        super().put_pod(found)
        self.account.put_pod(pod_of(found, measured=True))

    def losses(self, found: ApiPod) -> dict[str, NodeLoss]:
        """Return what a pod would lose on each node with room for the pod, without nodes with another policy."""
        pod, names = pod_of(found, measured=True), list(self.account.nodes)
        verdicts = self.account.fits_pod(pod, names)
        return self._packed.node_losses(pod, [name for name in names if isinstance(verdicts[name], Fit)])

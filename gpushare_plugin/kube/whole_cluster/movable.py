"""The cluster for display to people with what decides where pods could run: what pods need, and what controls them."""

from gpushare_plugin.kube.objects import ApiPod
from gpushare_plugin.kube.pods import controller_kind, judged_pod
from gpushare_plugin.kube.whole_cluster.overview import Overview


class MovableOverview(Overview):
    """An overview whose account has all pods, with their needs: pods without GPUs take CPU and memory of nodes."""

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.controllers: dict[str, str] = {}
        """The kind of the controller of each pod, by UID; see `controller_kind`."""

    def put_pod(self, found: ApiPod) -> None:
        """Take in the present state of a Pod."""
        self.account.put_pod(judged_pod(found))
        self.controllers[found.metadata.uid] = controller_kind(found)

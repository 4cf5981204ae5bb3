"""Claims in a store: allocated and reserved for pods, made from templates, given back."""

from copy import deepcopy
from typing import Any

from gpushare_plugin.testing.claims import expressions
from gpushare_plugin.testing.claims.allocator import ClaimAllocator, Selects
from gpushare_plugin.testing.cluster import Store
from gpushare_plugin.testing.kubelet.shared.pods import Pod

Object = dict[str, Any]

API = "/apis/resource.k8s.io/v1"


def _claims(namespace: str) -> str:
    return f"{API}/namespaces/{namespace}/resourceclaims"


class ClaimScheduler:
    """Writes into the store what kube-scheduler and the controller manager write of claims, for one node."""

    def __init__(self, store: Store, node: str, selects: Selects = expressions.matches) -> None:
        """Read slices, classes and claims of `store`."""
        self._store = store
        self._node = node
        self._selects = selects

    def schedule(self, pod: Pod) -> None:
        """Allocate the claims of a pod that are not allocated, and reserve all; raises AllocationError.

        Nothing is written where one of the claims finds no device.
        """
        found = [self._store.find(_claims(pod.namespace), name)[0] for name in pod.claims.values()]
        others = self._store.find(f"{API}/resourceclaims")
        written: list[Object] = []
        for claim in found:
            status = deepcopy(claim.get("status") or {})
            if "allocation" not in status:
                status["allocation"] = self._allocator([*others, *written]).allocate(claim)
            users = [*(status.get("reservedFor") or ()), {"resource": "pods", "name": pod.name, "uid": pod.uid}]
            written.append({**claim, "status": {**status, "reservedFor": users}})
        for claim in written:
            self._store.patch(_claims(pod.namespace), claim["metadata"]["name"], {"status": claim["status"]})

    def from_template(self, template: str, pod: Pod, name: str) -> Object:
        """Make a claim of a template for a pod, as the controller manager does."""
        (found,) = self._store.find(f"{API}/namespaces/{pod.namespace}/resourceclaimtemplates", template)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid, "controller": True}
        body = {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": deepcopy(found["spec"]["spec"])}
        return self._store.create(_claims(pod.namespace), body)

    def release(self, pod: Pod) -> None:
        """Take a pod from its claims, and deallocate those without a user: its end, or a forced deletion of the pod.

        The capacity is free then, whatever still runs on the node.
        """
        for name in pod.claims.values():
            for claim in self._store.find(_claims(pod.namespace), name):
                users = claim["status"].get("reservedFor") or ()
                left = [each for each in users if each["uid"] != pod.uid]
                status = {"reservedFor": left} if left else {"reservedFor": None, "allocation": None, "devices": None}
                self._store.patch(_claims(pod.namespace), name, {"status": status})

    def _allocator(self, claims: list[Object]) -> ClaimAllocator:
        classes = {each["metadata"]["name"]: each for each in self._store.find(f"{API}/deviceclasses")}
        slices = self._store.find(f"{API}/resourceslices")
        return ClaimAllocator(slices, claims, classes, self._node, self._selects)

"""The claims of a node at a moment: which claims are prepared, and whether the API server shows what claims can get."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.core.holding import CLAIM, Holding, Holdings, claimed_device_id
from gpushare_plugin.core.prepared_claim import PreparedClaim, PreparedDevice
from gpushare_plugin.core.resource import Durations


def of_each_claim(holdings: Iterable[Holding]) -> Mapping[tuple[str, str], list[Holding]]:
    """Return the holdings by claims, by the namespace and the name of the claim."""
    found: defaultdict[tuple[str, str], list[Holding]] = defaultdict(list)
    for each in holdings:
        if name := each.claim:
            found[each.namespace, name].append(each)
    return found


class ClaimState(Struct, frozen=True):
    """The claims of a node that gives GPUs by claim."""

    driver: str
    """The name of the DRA driver."""
    prepared: tuple[PreparedClaim, ...] = ()
    """The claims that are prepared, or about to be."""
    trouble: str = ""
    """Why the ResourceSlices of the node are not in the API server as they should be; empty where they are."""
    calls: Mapping[tuple[str, str], Durations] = field(default_factory=dict)
    """The durations of the kubelet's calls for claims, by the name of the call and the gRPC code."""
    refusals: Mapping[str, int] = field(default_factory=dict)
    """The number of claims that were refused, by reason; each attempt of the kubelet counts."""
    slices_written: int = 0
    """The number of ResourceSlices that were written or deleted."""
    slices_mended: int = 0
    """The number of ResourceSlices that others had deleted or changed, and that were written again."""

    def devices(self, claim: PreparedClaim) -> Mapping[str, PreparedDevice]:
        """Return the devices of a claim by their IDs in holdings."""
        return {claimed_device_id(self.driver, each.pool, each.device, each.share_id): each for each in claim.devices}

    def on(self, uuid: str) -> Iterator[PreparedDevice]:
        """Yield what prepared claims have of a GPU, the claims counted that are about to be prepared."""
        return (device for claim in self.prepared for device in claim.devices if device.gpu == uuid)

    def held(self, holdings: Iterable[Holding]) -> Iterator[tuple[Holding, list[PreparedDevice]]]:
        """Yield every holding by a claim with the devices of prepared claims that the container holds."""
        devices: defaultdict[tuple[str, str], list[tuple[str, PreparedDevice]]] = defaultdict(list)
        for claim in self.prepared:
            devices[claim.id.namespace, claim.id.name] += self.devices(claim).items()
        for holding in holdings:
            if holding.claim:
                named = devices[holding.namespace, holding.claim]
                yield holding, [device for id_, device in named if id_ in holding.ids]

    def of_request(self, claim: PreparedClaim, request: str) -> frozenset[str]:
        """Return the IDs of the devices of a request of a claim in holdings, of all requests where it is empty."""
        return frozenset(id_ for id_, each in self.devices(claim).items() if request in {"", each.request})

    def holdings(self, shown: Iterable[Holding], named: Iterable[Holding] = ()) -> Holdings:
        """Return what pods have of the prepared claims, with the UIDs of pods; `shown` is what the kubelet shows.

        The kubelet does not show which request of a claim a container names. The pods do: `named` is what containers
        have by the requests that they name. A claim with several requests is held by all containers of a pod together,
        with an empty name, where the pod is not known. While the kubelet shows no container with a claim, as while an
        init container runs, the pods hold the claim for which the claim was reserved.
        """
        held = of_each_claim(shown)
        exact = {(each.namespace, each.pod, each.container, each.claim): each for each in named}
        found = (self._of_claim(each, held.get((each.id.namespace, each.id.name), ()), exact) for each in self.prepared)
        return tuple(chain.from_iterable(found))

    def _of_claim(
        self, claim: PreparedClaim, shown: Iterable[Holding], named: Mapping[tuple[str, str, str, str], Holding]
    ) -> Iterator[Holding]:
        """Yield what pods have of a claim; `shown` are the holdings of claims with its name."""
        ids, together = frozenset(self.devices(claim)), len({each.request for each in claim.devices}) > 1
        uids = {user.name: user.uid for user in claim.users}
        found = [each for each in shown if each.ids & ids]
        for each in found:
            own = named.get((each.namespace, each.pod, each.container, each.claim))
            if own is not None and own.ids & ids:
                yield own._replace(ids=own.ids & ids)
                continue
            known = each._replace(ids=each.ids & ids, uid=each.uid or uids.get(each.pod, ""))
            yield known._replace(container="", container_id="") if together else known
        if not found:
            for user in claim.users:
                yield Holding(claim.id.namespace, user.name, "", CLAIM + claim.id.name, ids, user.uid)

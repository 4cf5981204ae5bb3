"""What is known of the claims of one pod, in sentences and in one sentence."""

from collections.abc import Iterable, Iterator

from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.claims.asked import PodClaim
from gpushare_plugin.claims.cluster import ClusterClaims, HeldGpu
from gpushare_plugin.claims.outlook import Naming, claims_verdict, outlook

NOT_MADE = "is to be made from its template, and is not there yet"
"""Why nothing is known of a claim that does not exist yet."""


class ClaimOverview(Struct, frozen=True):
    """What is known of the claims of a pod."""

    claims: tuple[PodClaim, ...] = ()
    """The claims of the pod."""
    gpus: tuple[HeldGpu, ...] = ()
    """The GPUs that are given by claim, and what claims have of them."""
    refused: tuple[str, ...] = ()
    """Why the node does not prepare the claims, as the kubelet says in Events, for people."""
    unread: tuple[str, ...] = ()
    """What cannot be read, with the consequence, for people."""

    def sentences(self, named: Naming = list) -> Iterator[str]:
        """Yield what people read of the claims; `named` returns what they read for the names of holders."""
        yield from self.unread
        yield from outlook(self.claims, self.gpus, named)
        yield from self.refused

    @property
    def verdict(self) -> str:
        """What keeps the pod waiting for its claims, or what the claims have, in one sentence; names no other pod."""
        if self.refused:
            return "The node refuses the claims of the pod; what its kubelet says stands below"
        if self.unread:
            return f"What the claims of the pod wait for is not known: {self.unread[0]}"
        return claims_verdict(self.claims, self.gpus)


class DeviceClasses(Struct, frozen=True):
    """The DeviceClasses of a cluster."""

    names: frozenset[str] | None = None
    """The names; None where they are not known."""
    unread: tuple[str, ...] = ()
    """Why the names are not known, with the consequence, for people."""


def claim_overview(
    claims: ClusterClaims, namespace: str, names: Iterable[tuple[str, str | None]], classes: DeviceClasses
) -> ClaimOverview:
    """Return what is known of the claims of a pod from the claims of the cluster.

    `names` are the entries of the pod, each with the name of its claim; None where that is not made yet.
    """
    if claims.unknown:
        return ClaimOverview(unread=(f"Claims are not shown: {claims.unknown}",))
    gpus, found = claims.gpus, list[PodClaim]()
    gone = {gpu.gpu.place for gpu in gpus if not gpu.gpu.offered}
    for entry, name in names:
        label = f"{namespace}/{name}"
        claim = PodClaim(entry, unknown=NOT_MADE) if name is None else claims.claim(label)
        claim = claim or PodClaim(label, unknown="does not exist")
        claim = replace(claim, gone=tuple(place for place in claim.allocated or () if place in gone))
        found.append(claim if classes.names is None else claim.among(classes.names))
    unread = classes.unread if any(claim.allocated is None for claim in found) else ()
    return ClaimOverview(tuple(found), gpus, unread=unread)

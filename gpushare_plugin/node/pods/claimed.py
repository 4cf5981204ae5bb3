"""What containers have by claims, as their pods name the claims and requests.

The kubelet shows each claim of a container with all its requests, and shows no init containers
(kubernetes 1.36, pkg/kubelet/cm/container_manager_linux.go, `GetDynamicResources`).
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpushare_plugin.core.claim_state import ClaimState
from gpushare_plugin.core.holding import CLAIM, Holding, Holdings

if TYPE_CHECKING:
    from gpushare_plugin.ledger.pod import Pod


def held_by_claim(pods: "Iterable[Pod]", claims: ClaimState | None) -> Holdings:
    """Return what the containers of pods have of prepared claims, init containers included."""
    return () if claims is None else tuple(_holdings(pods, claims))


def _holdings(pods: "Iterable[Pod]", claims: ClaimState) -> Iterator[Holding]:
    prepared = {(each.id.namespace, each.id.name): each for each in claims.prepared}
    for pod in pods:
        ids = dict(pod.container_ids)
        held: dict[tuple[str, str], frozenset[str]] = {}
        for container, name, request in pod.claims:
            if (claim := prepared.get((pod.namespace, name))) is not None:
                before = held.get((container, name), frozenset())
                held[container, name] = before | claims.of_request(claim, request)
        for (container, name), of in held.items():
            about = pod.namespace, pod.name, container, CLAIM + name
            yield Holding(*about, of, pod.uid_on_node, ids.get(container, ""))

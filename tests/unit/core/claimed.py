"""Claims of a node for the tests of usage: prepared claims, and what the kubelet shows of them."""

from collections.abc import Mapping

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.claim_state import ClaimState
from gpushare_plugin.core.holding import CLAIM, Holding
from gpushare_plugin.core.prepared_claim import ClaimId, ClaimUser, PreparedClaim, PreparedDevice
from gpushare_plugin.core.snapshot import Snapshot

DRIVER = "gpu.example.com"


def device(  # noqa: PLR0913 - what a device of a claim is
    made: Snapshot,
    mib: int,
    *,
    request: str = "gpu",
    way: str = "memory",
    gpu: int = 0,
    environment: Mapping[str, str] | None = None,
    admin_access: bool = False,
) -> PreparedDevice:
    """Return a share of a GPU, or a whole GPU."""
    uuid = made.inventory.gpus[gpu].uuid
    share = None if way == "whole" or admin_access else f"share-{request}"
    return PreparedDevice(
        request,
        "node",
        uuid.lower(),
        uuid,
        way,
        share,
        mib,
        admin_access=admin_access,
        environment=environment or {},
        isolation="none" if way == "whole" else made.isolations_in_use.get(uuid, "none"),
    )


def claim(name: str, *devices: PreparedDevice, users: tuple[str, ...] = (), done: bool = True) -> PreparedClaim:
    """Return a prepared claim; the UID of the pod `a` is `uid-a`."""
    pods = tuple(ClaimUser(each, f"uid-{each}") for each in users)
    return PreparedClaim(ClaimId("default", name, f"uid-of-{name}"), devices, done=done, users=pods)


def with_claims(made: Snapshot, *claims: PreparedClaim) -> Snapshot:
    """Return a node with these prepared claims."""
    return replace(made, claims=ClaimState(DRIVER, claims))


def shown(made: Snapshot, pod: str, name: str, container: str = "main") -> Holding:
    """Return a container as the kubelet shows a container with a claim, the ID of the container added."""
    assert made.claims is not None
    ids = frozenset(id_ for each in made.claims.prepared if each.id.name == name for id_ in made.claims.devices(each))
    return Holding("default", pod, container, CLAIM + name, ids, container_id=f"{pod}-{container}")

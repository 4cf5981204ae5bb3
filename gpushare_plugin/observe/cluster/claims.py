"""What claims have of GPUs that are given by claim, as data."""

from typing import Literal

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.capacities import COMPUTE, MEMORY, SHARES
from gpushare_plugin.claims.cluster import HeldByClaim, HeldGpu
from gpushare_plugin.observe.node.report import LimitEffect
from gpushare_plugin.observe.parts import Part

ClaimUseState = Literal["allocated", "prepared"]


class ClaimUse(Part, frozen=True, kw_only=True):
    """What one request of an allocated ResourceClaim has of a GPU."""

    namespace: str
    """The namespace of the claim and of its pods."""
    claim: str
    """The name of the claim."""
    claim_uid: str
    """The UID of the claim."""
    request: str
    """The name of the request; `request/alternative` where the request has alternatives."""
    pods: tuple[str, ...] = ()
    """The names of the pods that the claim is reserved for."""
    admin_access: bool = False
    """Whether the claim has the GPU for administration: without a limit, and counted nowhere."""
    memory_mib: int | None = None
    """The memory in MiB that counts against the GPU; None where no memory counts."""
    shares: int | None = None
    """The shares that count against the GPU; None where no shares count."""
    compute_percent: int | None = None
    """The compute in percent that counts against the GPU; None where no compute was asked for."""
    isolation: str | None = None
    """The isolation that limits the containers; None until the claim is prepared."""
    memory_limit_mib: int | None = None
    """The limit of memory in MiB; None without a limit, and until the claim is prepared."""
    compute_limit_percent: int | None = None
    """The limit of compute in percent; None without a limit, and until the claim is prepared."""
    state: ClaimUseState
    """The state: `allocated` by the scheduler; `prepared` by the node, which says in the claim what containers get."""
    limit_effect: LimitEffect | None = None
    """Whether the limit is in effect, as the node says in the claim; None where the node does not say."""

    @property
    def label(self) -> str:
        """The name of the claim for people: `namespace/name`."""
        return f"{self.namespace}/{self.claim}"


def claim_use(held: HeldByClaim, gpu: HeldGpu) -> ClaimUse:
    """Return what a claim has of a GPU."""
    status, device, counts = held.status, held.device, dict(held.device.consumed)
    whole = gpu.gpu.device.capacities.get(MEMORY)
    if whole is not None and not gpu.gpu.device.shared:
        counts = {MEMORY: whole.amount}
    if device.admin_access:
        counts = {}
    use = ClaimUse(
        namespace=held.claim.namespace,
        claim=held.claim.name,
        claim_uid=held.claim.uid,
        request=device.request,
        pods=tuple(user.name for user in held.users),
        admin_access=device.admin_access,
        memory_mib=counts.get(MEMORY, 0) // MIB or None,
        shares=counts.get(SHARES) or None,
        compute_percent=counts.get(COMPUTE) or None,
        state="allocated" if status is None else "prepared",
    )
    if status is None:
        return use
    effect = status.effect
    return replace(
        use,
        isolation=status.isolation,
        memory_limit_mib=status.memory_mib,
        compute_limit_percent=status.percent,
        limit_effect=None if effect is None else LimitEffect(state=effect.state, reason=effect.reason or None),
    )

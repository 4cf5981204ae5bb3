"""The claims of a node at a moment: which claims are prepared, and whether the API server shows what claims can get."""

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.core.prepared_claim import PreparedClaim


class ClaimState(Struct, frozen=True):
    """The claims of a node that gives GPUs by claim."""

    driver: str
    """The name of the DRA driver."""
    prepared: tuple[PreparedClaim, ...] = ()
    """The claims that are prepared, or about to be."""
    trouble: str = ""
    """Why the ResourceSlices of the node are not in the API server as they should be; empty where they are."""

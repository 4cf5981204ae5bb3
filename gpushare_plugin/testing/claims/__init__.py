"""What kube-scheduler and the controller manager do with ResourceClaims, in small: allocate, reserve, deallocate.

Read from Kubernetes 1.36: staging `dynamic-resource-allocation/structured/internal/incubating`. Left out: CEL but for a
few forms (see `expressions`), `allocationMode: All`, shared counters, slices that are not of one node, binding
conditions, extended resources, and the choice of a node.
"""

from gpushare_plugin.testing.claims.allocator import ClaimAllocator
from gpushare_plugin.testing.claims.errors import AllocationError, SelectorError
from gpushare_plugin.testing.claims.scheduler import ClaimScheduler

__all__ = ["AllocationError", "ClaimAllocator", "ClaimScheduler", "SelectorError"]

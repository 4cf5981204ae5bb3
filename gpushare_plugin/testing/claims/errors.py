"""Why a claim is not allocated."""

from gpushare_plugin.base.errors import GpushareError


class AllocationError(GpushareError):
    """No devices of the node fit the claim; the message is the one that the pod shows."""


class SelectorError(GpushareError):
    """A selector cannot be evaluated for a device, which ends the scheduling of the pod."""

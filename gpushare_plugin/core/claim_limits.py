"""The limits of the containers of claims, as the claims were given them; what only counts against a GPU is no limit."""

from gpushare_plugin.core.escapes import granted_percent
from gpushare_plugin.core.prepared_claim import PreparedDevice


def memory_limit_mib(device: PreparedDevice) -> int | None:
    """Return the limit of memory on a device of a claim in MiB; None without one."""
    return (device.memory_mib or None) if _limited(device) else None


def compute_limit_percent(device: PreparedDevice) -> int | None:
    """Return the limit of compute on a device of a claim in percent of the GPU; None without one."""
    return granted_percent(device.environment) if _limited(device) else None


def _limited(device: PreparedDevice) -> bool:
    return device.isolation != "none" and not device.admin_access

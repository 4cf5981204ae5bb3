"""The claim on a plugin directory: one daemon serves it at a time."""

from pathlib import Path

from gpushare_plugin.foundation.errors import GpushareError
from gpushare_plugin.foundation.files.lock import Lock, LockedError, lock

LOCK_FILE = "gpushare.lock"
"""Name of the file that is locked. It is never removed; a kubelet that starts removes sockets only."""


class AlreadyServedError(GpushareError):
    """Another gpushare has claimed the plugin directory; the message names both and what to do."""


def claim(directory: Path) -> Lock:
    """Claim the plugin directory for this process.

    Raises AlreadyServedError when another daemon, or another part of this process, has it; and OSError as `lock` does.
    """
    try:
        return lock(directory / LOCK_FILE)
    except LockedError as error:
        raise AlreadyServedError(
            f"another gpushare{error.holder} serves {directory}, and there can be only one; stop it first "
            "(during a rolling update, wait until the old pod has ended)"
        ) from None

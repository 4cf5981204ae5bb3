"""The mount namespace of a process: every container has its own."""

from pathlib import Path


def sees_our_files(pid: int) -> bool:
    """Return whether a process has the mount namespace of this process; False where that cannot be seen."""
    try:
        return Path(f"/proc/{pid}/ns/mnt").samefile("/proc/self/ns/mnt")
    except OSError:  # the process has ended, or access is denied
        return False

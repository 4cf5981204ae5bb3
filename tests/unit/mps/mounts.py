"""A program for a mount namespace of its own: mounts as a node and the container of `gpushare mps` have them.

It prints, as JSON, what became of `bound` there; its arguments are a directory to work in, and whether the container
has its MPS root with propagation to the host.
"""

import errno
import json
import subprocess
import sys
from pathlib import Path

from gpushare_plugin.config.schema.values import MemoryUnit
from gpushare_plugin.mps.shared_memory import SharedMemoryError, bound

MIB = 1 << 20


def mount(*arguments: str | Path) -> None:
    """Mount, or change a mount."""
    subprocess.run(["mount", *arguments], check=True)  # noqa: S607 - where every system has it


def fits(file: Path, mib: int) -> bool:
    """Tell whether so many MiB can be written to `file`."""
    try:
        file.write_bytes(bytes(mib * MIB))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def refused(directory: Path, mib: int) -> str:
    """Return why there is no limit, nothing where there is one."""
    try:
        bound(directory, MemoryUnit(mib))
    except SharedMemoryError as error:
        return str(error)
    return ""


def main() -> None:
    """Mount, bound, and tell."""
    folder = Path(sys.argv[1])
    host, container, devices = (folder / name for name in ("host", "mps root", "devices"))
    for each in (host, container, devices):
        each.mkdir()
    mount("-t", "tmpfs", "-o", "size=16m", "run", host)
    mount("--make-shared", host)
    (host / "shm").mkdir()
    mount("--bind", host, container)
    if sys.argv[2] == "private":
        mount("--make-private", container)
    mount("--bind", host / "shm", devices)
    mount("--make-slave", devices)
    reason = refused(container / "shm", 1)
    seen = {
        "reason": reason,
        "one MiB fits": fits(host / "shm" / "one", 1),
        "four MiB fit": fits(host / "shm" / "four", 4),
        "one for all": len({each.stat().st_dev for each in (host / "shm", container / "shm", devices)}) == 1,
    }
    (host / "shm" / "four").unlink()
    seen["more"] = refused(container / "shm", 8)
    seen["four MiB fit in more"] = fits(devices / "four", 4)
    seen["kept"] = (container / "shm" / "one").exists()
    seen["less"] = refused(container / "shm", 1)
    seen["mounts"] = Path("/proc/self/mountinfo").read_text().count(f"{host}/shm ")
    print(json.dumps(seen))  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()

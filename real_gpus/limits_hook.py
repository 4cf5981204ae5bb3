"""NVIDIA's own hook that sets driver limits, run as a container runtime runs it: the hook of OCI `createRuntime`.

Facts: NVIDIA/nvidia-container-toolkit, cmd/nvidia-cdi-hook/apply-cuda-memory-limits (variables, options); the state of
a container, which a hook reads: opencontainers/runtime-spec, runtime.md.
"""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpushare_plugin.core.driver_limits import LIMITS_HOOK

FIRST_WITH_HOOK = (1, 20, 1)
"""The first version of the toolkit with the hook."""
_VERSION = re.compile(r"version v?(\d+)\.(\d+)\.(\d+)")


def hook_command() -> Sequence[str]:
    """Return the words that run the hook; none without NVIDIA's container toolkit."""
    if (program := shutil.which("nvidia-cdi-hook")) is not None:
        return (program, LIMITS_HOOK)
    if (program := shutil.which("nvidia-ctk")) is not None:
        return (program, "hook", LIMITS_HOOK)
    return ()


def why_no_hook() -> str | None:
    """Return why the hook cannot be run here."""
    if not (command := hook_command()):
        return "there is neither nvidia-cdi-hook nor nvidia-ctk in PATH"
    told = subprocess.run([command[0], "--version"], capture_output=True, text=True, check=False)  # noqa: S603 - found
    found = _VERSION.search(told.stdout)
    if found and tuple(map(int, found.groups())) < FIRST_WITH_HOOK:
        first = ".".join(map(str, FIRST_WITH_HOOK))
        return f"{command[0]} has version {'.'.join(found.groups())}, and the hook is in {first} and newer"
    return None


async def run_hook(uuid: str, pid: int, environment: Mapping[str, str], bundle: Path) -> str:
    """Run the hook for the process `pid` of a container with this environment; return what it says where it fails."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    (bundle / "config.json").write_text(json.dumps({"ociVersion": "1.0.2", "process": {"env": variables}}))
    state = {"ociVersion": "1.0.2", "id": bundle.name, "status": "creating", "pid": pid, "bundle": str(bundle)}
    process = await asyncio.create_subprocess_exec(
        *(*hook_command(), "--driver-root", "/", "--gpu-id", uuid),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(json.dumps(state).encode())
    return said.decode(errors="replace").strip() if process.returncode else ""

"""A program that does what NVIDIA's CDI hook `apply-cuda-memory-limits` does, in each of the versions that are known.

It imports nothing but the standard library, as a container runtime runs it before each container. Facts, all of
NVIDIA/nvidia-container-toolkit: cmd/nvidia-cdi-hook/apply-cuda-memory-limits/apply-cuda-memory-limits.go and
internal/info/cgroup/cgroup_path.go at the commits that `HookVersion` names; internal/oci (state and specification);
cmd/nvidia-cdi-hook/commands/commands.go (a hook that a version does not have); pkg/lookup/library.go (the library).
"""

import argparse
import ctypes
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

NAME = "apply-cuda-memory-limits"
REQUEST, LIMIT = "NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT"
VERSIONS = ("none", "draft", "both", "either", "lenient")
"""The names of `HookVersion`, whose docstrings say what each one does."""

_MIB, _WITHOUT_LIMIT = 1 << 20, (1 << 64) - 1
_MOST_MIB = _WITHOUT_LIMIT // _MIB
_LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = ("usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu")


class HookError(Exception):
    """The hook fails, and with it the creation of the container."""


class _SetMemoryLimits(ctypes.Structure):
    _fields_ = (("path", ctypes.c_char_p), ("soft", ctypes.c_ulonglong), ("hard", ctypes.c_ulonglong))


def run(version: str, state: Mapping[str, Any], options: argparse.Namespace) -> str:
    """Set the limits of the container that is being created, and return what is said of it; raises HookError."""
    try:
        spec = json.loads(Path(state["bundle"], "config.json").read_text())
    except (OSError, ValueError) as error:
        if version == "lenient":
            return f"skipping {NAME}; failed to load OCI container spec: {error}"
        raise HookError(f"failed to load OCI container spec: {error}") from error
    request, limit = (_wanted(version, spec, name) for name in (REQUEST, LIMIT))
    if (request is None and limit is None) or (version in {"draft", "both"} and None in {request, limit}):
        return ""
    if not (options.cgroups / "cgroup.controllers").exists():
        raise HookError("setting GPU memory limits is only supported in cgroup v2")
    find: Callable[..., Path] = _path_of_spec if version == "draft" else _path_of_process
    cgroup = find(options, state, spec)
    most = None if version in {"draft", "both"} else _MOST_MIB
    soft, hard = (None if each is None else _number(each, most) for each in (request, limit))
    hard = _WITHOUT_LIMIT if hard is None else hard * _MIB
    soft = hard if soft is None else soft * _MIB
    if soft > hard:
        raise HookError(f"memory request ({soft // _MIB} MiB) exceeds memory limit ({hard // _MIB} MiB)")
    _set(_library(options.driver_root), options.gpu_id, cgroup, soft, hard)
    return ""


def _wanted(version: str, spec: Mapping[str, Any], name: str) -> str | None:
    """Return the value of a variable, of several of the same name the first one."""
    names = (f"{name}S", name) if version == "draft" else (name,)
    variables = [each.partition("=") for each in spec.get("process", {}).get("env", [])]
    return next((value for wanted in names for key, _, value in variables if key == wanted), None)


def _number(text: str, most: int | None) -> int:
    """Return a number as strconv.ParseUint reads it."""
    if not re.fullmatch(r"[0-9]+", text, re.ASCII) or int(text) > _WITHOUT_LIMIT:
        raise HookError(f'failed to parse: strconv.ParseUint: parsing "{text}": invalid syntax or out of range')
    if most is not None and int(text) > most:
        raise HookError(f"{text} MiB exceeds the maximum supported value of {most} MiB")
    return int(text)


def _path_of_process(options: argparse.Namespace, state: Mapping[str, Any], spec: Mapping[str, Any]) -> Path:
    """Return the cgroup in /proc/PID/cgroup, which must have one line, and no colon in its path."""
    del spec
    try:
        parts = (options.procfs / str(state["pid"]) / "cgroup").read_text().strip().split(":")
    except OSError as error:
        raise HookError(f"failed to resolve cgroup path: {error}") from error
    if len(parts) != 3:  # noqa: PLR2004 - ID, controllers and path
        raise HookError("failed to resolve cgroup path: invalid cgroup path")
    return Path(options.cgroups, parts[2].lstrip("/"))


def _path_of_spec(options: argparse.Namespace, state: Mapping[str, Any], spec: Mapping[str, Any]) -> Path:
    """Return the cgroup in the specification of the container, of which only the form of systemd is known."""
    del state
    parts = spec.get("linux", {}).get("cgroupsPath", "").split(":")
    if len(parts) != 3:  # noqa: PLR2004 - slice, prefix and name
        raise HookError(f"failed to resolve cgroup path: expected slice:prefix:name, got {':'.join(parts)!r} instead")
    begin, path = "", options.cgroups
    for name in parts[0].removesuffix(".slice").split("-"):
        begin = f"{begin}-{name}" if begin else name
        path /= f"{begin}.slice"
    return Path(path, f"{parts[1]}-{parts[2]}.scope")


def _library(driver_root: Path) -> ctypes.CDLL:
    found = [path for folder in _FOLDERS if (path := driver_root / folder / _LIBRARY).exists()]
    names = [*map(str, found), *([_LIBRARY] if driver_root == Path("/") else [])]
    if not names:
        raise HookError(f"failed to locate {_LIBRARY}: not found")
    try:
        return ctypes.CDLL(names[0])
    except OSError as error:
        raise HookError(f"failed to initialize nvml: {error}") from error


def _set(library: ctypes.CDLL, uuid: str, cgroup: Path, soft: int, hard: int) -> None:
    if code := library.nvmlInit_v2():
        raise HookError(f"failed to initialize nvml: {code}")
    handle = ctypes.c_void_p()
    if code := library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        raise HookError(f"failed to get GPU device handle with uuid {uuid}: {code}")
    if not hasattr(library, "nvmlDeviceSetMemoryLimits_v1"):
        raise HookError("symbol lookup error: undefined symbol: nvmlDeviceSetMemoryLimits_v1")
    limits = _SetMemoryLimits(bytes(cgroup), soft, hard)
    if code := library.nvmlDeviceSetMemoryLimits_v1(handle, ctypes.byref(limits)):
        raise HookError(f'failed to set memory limits for gpu "{uuid}": {code}')


def main() -> None:
    """Read the state of the container from standard input; exit with 1 and words where the hook fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("version", choices=VERSIONS)
    parser.add_argument("cgroups", type=Path)
    parser.add_argument("procfs", type=Path)
    parser.add_argument("hook")
    parser.add_argument("--driver-root", type=Path, default=Path("/"))
    parser.add_argument("--gpu-id", required=True)
    options = parser.parse_args()
    if options.version == "none" or options.hook != NAME:
        sys.stderr.write(f"ignoring unsupported hook {options.hook}\n")
        return
    try:
        sys.stderr.write(run(options.version, json.load(sys.stdin), options))
    except HookError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

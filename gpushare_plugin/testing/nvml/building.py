"""Compiling `library.c`, the stand-in for `libnvidia-ml.so.1`, once a user and a version of the source."""

import hashlib
import importlib.util
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gpushare_plugin.base.errors import GpushareError

LIBRARY_NAME = "libnvidia-ml.so.1"
"""The file name and the soname: what programs that use NVML ask the dynamic loader for."""

SOURCE = Path(__file__).with_name("library.c")
_INCLUDED = Path(__file__).with_name("memory_limits.c")
_WITHOUT_LIMITS = "-DWITHOUT_MEMORY_LIMITS"

_FLAGS = (
    *("-std=gnu11", "-O1", "-Wall", "-Wextra"),
    *("-shared", "-fPIC", "-fvisibility=hidden", "-pthread", f"-Wl,-soname,{LIBRARY_NAME}"),
)


class CompilerError(GpushareError):
    """The stand-in cannot be compiled: there is no C compiler, or it refused the source."""


def compilers() -> list[tuple[str, ...]]:
    """Return the command of every C compiler found here, the machine's own before the one in the ziglang wheel."""
    found: list[tuple[str, ...]] = [(path,) for name in ("cc", "gcc", "clang") if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang"):
        found.append((sys.executable, "-m", "ziglang", "cc"))
    return found


def build(directory: Path | None = None, compiler: Sequence[str] | None = None, *, memory_limits: bool = True) -> Path:
    """Compile the stand-in to `directory` and return the path of `libnvidia-ml.so.1` there.

    Without `memory_limits` the library lacks the functions for these, as those of drivers before 615 do.

    Without a `directory` it is compiled once for each version of the source and kept in the user's cache
    (`$XDG_CACHE_HOME`, else below the directory for temporary files). `compiler` is the beginning of a command, such
    as `["clang"]`; without it the first of `compilers()`. Any number of processes may build at once.

    Raises `CompilerError` where there is no compiler or it fails.
    """
    options = () if memory_limits else (_WITHOUT_LIMITS,)
    if directory is None:
        target = _cache() / _version(options) / LIBRARY_NAME
        if target.exists():
            return target
    else:
        target = directory / LIBRARY_NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="building-") as workplace:
        built = Path(workplace, LIBRARY_NAME)
        _compile(built, compiler, options)
        built.replace(target)
    return target


def _compile(target: Path, compiler: Sequence[str] | None, options: Sequence[str]) -> None:
    command = compiler or next(iter(compilers()), None)
    if command is None:
        raise CompilerError("no C compiler found: install one as cc, gcc or clang, or the Python package ziglang")
    try:
        result = subprocess.run(  # noqa: S603 - the caller's compiler, or one found on the path
            [*command, *_FLAGS, *options, "-o", str(target), str(SOURCE)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise CompilerError(f"{' '.join(command)} cannot be started: {error}") from error
    if result.returncode:
        raise CompilerError(f"{' '.join(command)} cannot compile {SOURCE}:\n{result.stderr}")


@cache
def _version(options: Sequence[str]) -> str:
    machine = f"{platform.machine()} {platform.libc_ver()} {_FLAGS} {options}"
    return hashlib.sha256(SOURCE.read_bytes() + _INCLUDED.read_bytes() + machine.encode()).hexdigest()[:16]


def _cache() -> Path:
    """Return the user's own cache directory; what is there is loaded into processes, so no other may write it."""
    if given := os.environ.get("XDG_CACHE_HOME"):
        return Path(given, "gpushare", "nvml")
    directory = Path(tempfile.gettempdir(), f"gpushare-nvml-{os.getuid()}")
    directory.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    state = directory.lstat()
    if state.st_uid != os.getuid() or not stat.S_ISDIR(state.st_mode) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CompilerError(
            f"{directory} can be written by others: remove it, or set XDG_CACHE_HOME to a directory of yours"
        )
    return directory

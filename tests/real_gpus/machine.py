"""A machine with stand-ins for what NVIDIA's driver brings, on which the steps run as on a machine with a GPU."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpushare_plugin.testing.mps import FakeMps
from gpushare_plugin.testing.nvml import LIBRARY_NAME, FakeGpu, FakeNvml, FakeProcess, compilers

ROOT = Path(__file__).parents[2]
LIBRARY = Path(__file__).with_name("library.c")
GPU = FakeGpu(name="NVIDIA H100 80GB HBM3", memory_mib=81559, reserved_mib=480, compute_capability=(9, 0))
MULTIPROCESSORS = 132


class Machine:
    """A machine without a GPU, or with what `environment` stands for."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Run programs with these variables; libraries of this machine's own driver are not found."""
        nothing = folder / "nothing"
        nothing.mkdir()
        for name in (LIBRARY_NAME, "libcuda.so.1"):
            (nothing / name).touch()  # no library that can be loaded
        paths = f"{environment.get('LD_LIBRARY_PATH', '')}:{nothing}".removeprefix(":")
        self.environment = {**environment, "LD_LIBRARY_PATH": paths}

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the steps; `arguments` are those of `python -m real_gpus`."""
        command = [sys.executable, "-m", "real_gpus", *map(str, arguments)]
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )


@contextmanager
def machine(folder: Path, *gpus: FakeGpu, cuda: bool = True, use: FakeProcess | None = None) -> Iterator[Machine]:
    """Yield a machine with these GPUs, or with one H100; without `cuda`, no library of CUDA is found there.

    `use` is a process that uses the first GPU.
    """
    with FakeNvml(gpus or [GPU]) as nvml, FakeMps() as mps:
        if use is not None:
            nvml.use(nvml.gpus[0].uuid, use)
        yield Machine(folder, {**mps.environment, **(with_cuda(folder, nvml) if cuda else nvml.environment)})


def with_cuda(folder: Path, nvml: FakeNvml) -> Mapping[str, str]:
    """Return the environment of programs that see the GPUs of `nvml` by the stand-ins for NVML and CUDA."""
    described = [f"{gpu.uuid},{gpu.memory_mib - gpu.reserved_mib},{MULTIPROCESSORS}" for gpu in nvml.gpus]
    paths = f"{_cuda(folder)}:{nvml.environment['LD_LIBRARY_PATH']}"
    return {**nvml.environment, "FAKE_CUDA": ";".join(described), "LD_LIBRARY_PATH": paths}


def _cuda(folder: Path) -> Path:
    """Compile the stand-in for libcuda.so.1; return its folder."""
    target = folder / "libcuda.so.1"
    flags = ("-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden")
    subprocess.run([*compilers()[0], *flags, "-o", target, LIBRARY], check=True)
    return folder

"""A container runtime, as far as limits of memory depend on it: specification, cgroup, process and hooks of containers.

Facts: opencontainers/runtime-spec, runtime.md ("Lifecycle": the hooks `createRuntime` run when the process of the
container exists and its program does not run yet; a hook that fails ends the container), config.md, config-linux.md;
for just-in-time CDI, internal/modifier/cdi.go of NVIDIA/nvidia-container-toolkit.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Literal

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.testing.cgroups import PodCgroups, Qos
from gpushare_plugin.testing.kubelet import Pod, StartedContainer
from gpushare_plugin.testing.nvml import FakeNvml
from gpushare_plugin.testing.nvml.memory import HeldMemory
from gpushare_plugin.testing.runtime.edits import Document, edits_of

Mode = Literal["cdi", "jit-cdi", "legacy"]
"""How containers get GPUs: by the CDI devices that the kubelet names; by the nvidia runtime, which makes a
specification at the moment; or by the nvidia runtime without CDI, which runs no hook for limits."""

_HOOK = Path(__file__).with_name("hook.py")
_FIRST_PID = (1 << 22) + 1
"""More than any process of the machine has (proc_sys_kernel(5), pid_max)."""
_VISIBLE, _MOUNTED = "NVIDIA_VISIBLE_DEVICES", "/var/run/nvidia-container-devices/"
_HOST_NAMESPACE = "pid:[4026531836]"


class HookVersion(StrEnum):
    """The versions of the hook `apply-cuda-memory-limits`."""

    NONE = "none"
    """A toolkit before 1.20.1: ignores a hook that it does not have, with a warning."""
    DRAFT = "draft"
    """#1995, commit 5ab636a2: also takes `…REQUESTS` and `…LIMITS`, and these first; does nothing without both values;
    fails unless `linux.cgroupsPath` has systemd's form."""
    BOTH = "both"
    """#2075 in review, commit 064024a7: the singular names alone; does nothing without both."""
    EITHER = "either"
    """#2075 as merged: one of both is enough, and numbers have an upper bound."""
    LENIENT = "lenient"
    """#2103: as before, but a specification that cannot be read is a warning."""


class ContainerError(GpushareError):
    """A container is not created; the message is the hook's."""


@dataclass(eq=False)
class RunningContainer:
    """A container whose process runs."""

    id: str
    """The runtime's ID."""
    pod: Pod
    """The pod of the container."""
    name: str
    """The name in the pod."""
    qos: Qos
    """The QoS class of the pod."""
    pid: int
    """The process, which is described in `Runtime.procfs`."""
    cgroup: Path
    """The directory of the cgroup of the process."""
    environment: Mapping[str, str]
    """The environment of the process."""
    allocations: list[HeldMemory] = field(default_factory=list)
    """The memory that the process has."""


class Runtime:
    """Creates and ends the containers of a node."""

    def __init__(  # noqa: PLR0913 - the parts of a node
        self,
        folder: Path,
        pods: PodCgroups,
        nvml: FakeNvml,
        *,
        hook: HookVersion = HookVersion.LENIENT,
        mode: Mode = "cdi",
        cdi: Sequence[Path] = (),
    ) -> None:
        """Keep bundles and a `/proc` in `folder`; take CDI devices from the specifications in the directories `cdi`.

        `hook` is the version of the programs that specifications name as `nvidia-cdi-hook` or `nvidia-ctk`. Without
        `shows_bundles` hooks find no specification of the container, as with podman's `--userns nomap` (toolkit #2103).
        """
        self.procfs = folder / "proc"
        self.containers: dict[str, RunningContainer] = {}
        self.hook = hook
        self.shows_bundles = True
        self._bundles = folder / "bundles"
        self._pods = pods
        self._nvml = nvml
        self._mode = mode
        self._cdi = cdi
        self._numbers = count()
        (self.procfs / "self/ns").mkdir(parents=True)
        (self.procfs / "self/ns/pid").symlink_to(_HOST_NAMESPACE)

    def start(
        self, pod: Pod, started: StartedContainer, *, image: Mapping[str, str] | None = None, qos: Qos = "burstable"
    ) -> RunningContainer:
        """Create a container, run its hooks and then its process, which finds the variables of its `image`, too.

        Raises ContainerError where a hook fails, UnresolvableDeviceError for an unknown CDI device; nothing is left.
        """
        number = next(self._numbers)
        container_id = hashlib.sha256(f"{pod.uid} {started.name} {number}".encode()).hexdigest()
        edits = edits_of(started.cdi_devices, self._cdi) if self._mode == "cdi" else edits_of((), ())
        environment = {**(image or {}), **started.environment, **edits.environment}
        hooks = [*edits.hooks, *self._just_in_time(environment, started)]
        cgroup = self._pods.container(pod.uid, container_id, qos)
        container = RunningContainer(container_id, pod, started.name, qos, _FIRST_PID + number, cgroup, environment)
        self._describe(container)
        bundle = self._bundle(container, hooks)
        state = {"id": container_id, "status": "creating", "pid": container.pid}
        state |= {"bundle": str(bundle) if self.shows_bundles else "/"}
        try:
            for hook in hooks:
                self._run(hook, state)
        except ContainerError:
            self._remove(container)
            raise
        self.containers[container_id] = container
        return container

    def allocate(self, container: RunningContainer, gpu: int, mib: int, *, managed: bool = False) -> HeldMemory | None:
        """Let a process of a container allocate memory of a card; None where the driver refuses."""
        got = self._nvml.allocate(gpu, container.cgroup, mib, managed=managed)
        container.allocations += [got] if got else []
        return got

    def room(self, container: RunningContainer, gpu: int) -> int:
        """Return the most MiB that a process of a container can allocate in one piece of a card."""
        low, high = 0, self._nvml.gpus[gpu].memory_mib
        while low < high:
            middle = (low + high + 1) // 2
            if got := self._nvml.allocate(gpu, container.cgroup, middle):
                got.free()
            low, high = (middle, high) if got else (low, middle - 1)
        return low

    def stop(self, container: RunningContainer) -> None:
        """End the processes of a container, which free their memory, and remove its cgroup; no hook is run."""
        for allocation in container.allocations:
            allocation.free()
        container.allocations.clear()
        del self.containers[container.id]
        self._remove(container)

    def remove_pod(self, pod: Pod) -> None:
        """End all containers of a pod, and remove its cgroup."""
        containers = [each for each in self.containers.values() if each.pod.uid == pod.uid]
        for container in containers:
            self.stop(container)
        for qos in {each.qos for each in containers}:
            self._pods.remove_pod(pod.uid, qos)

    def _describe(self, container: RunningContainer) -> None:
        process = self.procfs / str(container.pid)
        process.mkdir()
        path = container.cgroup.relative_to(self._pods.cgroups.root)
        (process / "cgroup").write_text(f"0::/{path}\n")
        (process / "environ").write_text("".join(f"{name}={value}\0" for name, value in container.environment.items()))
        (process / "stat").write_text(f"{container.pid} (program) S {' '.join(['0'] * 30)}\n")
        (process / "maps").write_text("")
        self._pods.cgroups.enter(container.cgroup, container.pid)

    def _remove(self, container: RunningContainer) -> None:
        self._pods.cgroups.leave(container.cgroup, container.pid)
        shutil.rmtree(self.procfs / str(container.pid))
        self._pods.remove_container(container.pod.uid, container.id, container.qos)

    def _bundle(self, container: RunningContainer, hooks: Sequence[Document]) -> Path:
        """Write the OCI specification of a container, and return its bundle."""
        document = {
            "ociVersion": "1.2.0",
            "process": {"env": [f"{name}={value}" for name, value in container.environment.items()]},
            "hooks": {"createRuntime": [{"path": each["path"], "args": each["args"]} for each in hooks]},
            "linux": {"cgroupsPath": self._pods.runtime_path(container.pod.uid, container.id, container.qos)},
        }
        bundle = self._bundles / container.id
        bundle.mkdir(parents=True)
        (bundle / "config.json").write_text(json.dumps(document))
        return bundle

    def _run(self, hook: Document, state: Document) -> None:
        arguments = [each for each in hook["args"][1:] if each != "hook"]  # as `nvidia-ctk hook …`
        if "apply-cuda-memory-limits" not in arguments:
            return
        command = [sys.executable, "-I", str(_HOOK), self.hook, str(self._pods.cgroups.root), str(self.procfs)]
        done = subprocess.run(  # noqa: S603 - a program of the test kit
            [*command, *arguments],
            input=json.dumps(state),
            env=self._nvml.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ContainerError(
                "failed to create containerd task: failed to create shim task: OCI runtime create failed: error "
                f"running createRuntime hook #0: exit status {done.returncode}, stderr: {done.stderr.strip()}"
            )

    def _just_in_time(self, environment: Mapping[str, str], started: StartedContainer) -> Iterator[Document]:
        """Yield the hooks of a specification that the nvidia runtime makes: one for each card that is visible."""
        if self._mode != "jit-cdi":
            return
        mounted = [each.container_path.removeprefix(_MOUNTED) for each in started.mounts]
        visible = [*environment.get(_VISIBLE, "").split(","), *mounted]
        for index, gpu in enumerate(self._nvml.gpus):
            if {str(index), gpu.uuid, "all"} & set(visible):
                arguments = ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", "/", "--gpu-id", gpu.uuid]
                yield {"hookName": "createRuntime", "path": "/usr/bin/nvidia-cdi-hook", "args": arguments}

"""CRI-O: its configuration, with the drop-in files.

Facts: cri-o/cri-o, docs/crio.conf.5.md (`/etc/crio/crio.conf`, then `/etc/crio/crio.conf.d` in the order of the names;
tables crio.runtime and crio.runtime.runtimes, `cdi_spec_dirs`; CDI is always on) and docs/crio.8.md (hooks in
/usr/share/containers/oci/hooks.d). NVIDIA's operator writes `99-nvidia.toml`, or without CDI the hook
`oci-nvidia-hook.json` (nvidia-container-toolkit, cmd/nvidia-ctk-installer/container/runtime/crio/crio.go).
"""

import tomllib

from gpushare_plugin.doctor.node.diagnosis import Defect
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.subjects.runtimes.runtime import (
    CDI_DIRECTORIES,
    FOR_PODS,
    NVIDIAS_RUNTIME,
    RuntimeFacts,
    table,
    text,
    texts,
)

_MAIN, _DROP_INS = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
_HOOKS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", "/run/containers/oci/hooks.d")
_HOOK = "*nvidia*.json"
_RESTART = "systemctl restart crio"


def read_crio(host: HostRoot) -> RuntimeFacts | None:
    """Return what the configuration of CRI-O says; None on a node without CRI-O."""
    files = tuple(host.matching(_MAIN)) + tuple(host.matching(f"{_DROP_INS}/*"))
    if not files:
        return None
    handlers, default = {"crun": ""}, "crun"
    directories: tuple[str, ...] = CDI_DIRECTORIES
    defects = []
    for file in files:
        try:
            runtime = table(tomllib.loads(host.text(file) or ""), "crio", "runtime")
        except (UnreadableError, ValueError, RecursionError) as error:
            mend = f"correct {file}, which CRI-O cannot read either, and run {_RESTART}"
            defects.append(Defect(f"{file}: {error}", mend))
            continue
        for name, handler in table(runtime, "runtimes").items():
            handlers[name] = text(table(handler).get("runtime_path"))
        default = text(runtime.get("default_runtime")) or default
        directories = texts(runtime.get("cdi_spec_dirs")) or directories
    return RuntimeFacts(
        name="CRI-O",
        files=files,
        service=_RESTART,
        handlers=handlers | _of_hooks(host),
        default=_hooked(host) or default,
        cdi=True,
        cdi_directories=directories,
        adds_nvidia=f"run `nvidia-ctk runtime configure --runtime=crio` and `{_RESTART}`; {FOR_PODS}",
        defects=tuple(defects),
    )


def _hooked(host: HostRoot) -> str:
    """Return a name for the hook that acts as NVIDIA's runtime in every container; empty without a hook."""
    return next((f"{folder}/{name}" for folder in _HOOKS for name in host.names(folder, _HOOK)), "")


def _of_hooks(host: HostRoot) -> dict[str, str]:
    return {hook: f"{NVIDIAS_RUNTIME}-hook"} if (hook := _hooked(host)) else {}

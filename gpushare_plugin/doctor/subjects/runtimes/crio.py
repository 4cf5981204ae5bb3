"""CRI-O: its configuration, with the drop-in files.

Facts: cri-o/cri-o, docs/crio.conf.5.md (`/etc/crio/crio.conf`, then `/etc/crio/crio.conf.d` in the order of the names;
tables crio.runtime and crio.runtime.runtimes, `cdi_spec_dirs`; CDI is always on) and docs/crio.8.md (hooks in
/usr/share/containers/oci/hooks.d); pkg/config/config.go (`UpdateFromPath` also reads directories below;
`ValidateDefaultRuntime`: CRI-O does not start with a default handler that has no table, an empty name is the default,
and a table of the default is built in: crun, up to 1.30 runc). NVIDIA's operator writes `99-nvidia.toml`, or without
CDI the hook `oci-nvidia-hook.json` (nvidia-container-toolkit, cmd/nvidia-ctk-installer/container/runtime/crio/crio.go).
"""

from collections.abc import Iterator

from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.toml_files import TomlError, read_toml
from gpushare_plugin.doctor.subjects.runtimes.runtime import (
    CDI_DIRECTORIES,
    FOR_PODS,
    NVIDIAS_RUNTIME,
    DefaultHandler,
    RuntimeFacts,
    table,
    text,
    texts,
    unknown_default,
    unreadable,
)

_MAIN, _DROP_INS = "/etc/crio/crio.conf", "/etc/crio/crio.conf.d"
_HOOKS = ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d", "/run/containers/oci/hooks.d")
_HOOK = "*nvidia*.json"
_RESTART = "`systemctl restart crio`"
_BUILT_IN, _BUILT_IN_BEFORE = "crun", "runc"
"""The handler that needs no table: of CRI-O 1.31 and newer, and of older ones."""


def read_crio(host: HostRoot) -> RuntimeFacts | None:
    """Return what the configuration of CRI-O says; None on a node without CRI-O."""
    files = (*host.matching(_MAIN), *_below(host, _DROP_INS))
    if not files:
        return None
    handlers, places = {_BUILT_IN: ""}, dict[str, str]()
    default = DefaultHandler(_BUILT_IN, "default_runtime", _MAIN)
    directories: tuple[str, ...] = CDI_DIRECTORIES
    defects, unread = [], []
    for file in files:
        try:
            runtime = table(read_toml(host, file), "crio", "runtime")
        except (UnreadableError, TomlError) as error:
            defects.append(unreadable(file, error, "CRI-O", _RESTART))
            unread.append(file)
            continue
        for name, handler in table(runtime, "runtimes").items():
            handlers[name], places[name] = text(table(handler).get("runtime_path")), file
        if (given := runtime.get(default.key)) is not None:
            default = default._replace(name=text(given) or _BUILT_IN, file=file)
        directories = texts(runtime.get("cdi_spec_dirs")) or directories
    if default.name == _BUILT_IN_BEFORE:
        handlers.setdefault(_BUILT_IN_BEFORE, "")
    return RuntimeFacts(
        name="CRI-O",
        files=files,
        service=_RESTART,
        handlers=handlers | _of_hooks(host),
        default=_hooked(host) or default.name,
        default_setting=default.setting if default.name in places else "",
        cdi=True,
        cdi_directories=directories,
        adds_nvidia=f"run `nvidia-ctk runtime configure --runtime=crio` and {_RESTART}; {FOR_PODS}",
        handler_files=places,
        # The handler may be in a file that cannot be read.
        defects=tuple(defects) or unknown_default(host, default, handlers, "CRI-O", _RESTART),
        unread=tuple(unread),
    )


def _below(host: HostRoot, directory: str) -> Iterator[str]:
    """Yield the files below a directory in the order of their names."""
    for path in host.matching(f"{directory}/*"):
        yield from _below(host, path) if host.is_directory(path) else (path,)


def _hooked(host: HostRoot) -> str:
    """Return a name for the hook that acts as NVIDIA's runtime in every container; empty without a hook."""
    return next((f"{folder}/{name}" for folder in _HOOKS for name in host.names(folder, _HOOK)), "")


def _of_hooks(host: HostRoot) -> dict[str, str]:
    return {hook: f"{NVIDIAS_RUNTIME}-hook"} if (hook := _hooked(host)) else {}

"""Docker as the runtime of a kubelet, by cri-dockerd.

Facts: docs.docker.com, dockerd, "Daemon configuration file" (`/etc/docker/daemon.json`: `runtimes`, `default-runtime`,
`features.cdi`, `cdi-spec-dirs`; `--add-runtime`); moby/moby, daemon/runtime_unix.go, `setupRuntimes` (Docker does not
start with a default runtime that is not there; a name with a dot may be a shim of containerd); Mirantis/cri-dockerd,
README.md (`/run/cri-dockerd.sock`), pull request 350 (handlers of runtime classes, since 2024) and pull request 522
(CDI devices, since November 2025; Docker takes them from 25.0 on).
"""

import json
import re

from gpushare_plugin.doctor.node.diagnosis import Defect
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.subjects.runtimes.runtime import (
    CDI_DIRECTORIES,
    DefaultHandler,
    RuntimeFacts,
    table,
    text,
    texts,
    unknown_default,
)

_FILE = "/etc/docker/daemon.json"
_SOCKETS = ("/run/cri-dockerd.sock", "/var/run/cri-dockerd.sock")
_RESTART = "`systemctl restart docker`"
_SERVICE = tuple(
    f"{folder}/systemd/system/docker.service{part}"
    for folder in ("/lib", "/usr/lib", "/etc")
    for part in ("", ".d/*.conf")
)
"""The files with the options of dockerd (systemd.unit(5))."""
_ADDED = re.compile(r"--add-runtime[= ]([^\s=]+)=(\S+)")


def read_docker(host: HostRoot) -> RuntimeFacts | None:
    """Return what the configuration of Docker says; None on a node whose kubelet does not use Docker."""
    if host.first(*_SOCKETS) is None:
        return None
    content: object = {}
    defects = []
    try:
        content = json.loads(host.text(_FILE) or "{}")
    except (UnreadableError, ValueError, RecursionError) as error:
        defects.append(
            Defect(f"{_FILE}: {error}", f"correct {_FILE}, which Docker cannot read either, and run {_RESTART}")
        )
    settings = table(content)
    added = {name: (path, file) for file in _units(host) for name, path in _ADDED.findall(host.line(file))}
    named = {name: text(table(each).get("path")) for name, each in table(settings, "runtimes").items()}
    handlers = {"runc": ""} | {name: path for name, (path, _) in added.items()} | named
    default = DefaultHandler(text(settings.get("default-runtime")) or "runc", "default-runtime", _FILE)
    shims = {default.name: ""} if "." in default.name else {}
    return RuntimeFacts(
        name="Docker",
        files=tuple(host.matching(_FILE)),
        service=_RESTART,
        handlers=handlers,
        default=default.name,
        default_setting=default.setting,
        cdi=given if isinstance(given := table(settings, "features").get("cdi"), bool) and not given else None,
        cdi_directories=texts(settings.get("cdi-spec-dirs")) or CDI_DIRECTORIES,
        enables_cdi=f'set `"features": {{"cdi": true}}` in {_FILE}, run {_RESTART}, and use a cri-dockerd of November '
        "2025 or newer; older ones pass no CDI names on: use deviceListStrategy envvar with them",
        adds_nvidia=f"run `nvidia-ctk runtime configure --runtime=docker --set-as-default` and {_RESTART}",
        handler_files={name: file for name, (_, file) in added.items()} | dict.fromkeys(named, _FILE),
        unread=(_FILE,) if defects else (),
        defects=tuple(defects) or unknown_default(host, default, shims | handlers, "Docker", _RESTART),
    )


def _units(host: HostRoot) -> list[str]:
    return [file for pattern in _SERVICE for file in host.matching(pattern)]

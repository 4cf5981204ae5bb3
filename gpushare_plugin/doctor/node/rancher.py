"""K3s and RKE2: their services, and where the configuration and the state of each are.

Facts: docs.k3s.io, "Configuration File" (`/etc/rancher/k3s/config.yaml` and `config.yaml.d`, a later file of which
counts more, and the flags of the command more than all); pkg/cli/cmds of k3s-io/k3s (`--data-dir`, `-d`, and its
variable). The script of get.k3s.io writes each word of the command on a line of its own, in quotation marks, and
variables into `k3s.service.env`. RKE2 is the same with its own name (docs.rke2.io). Units and their drop-in files:
systemd.unit(5).
"""

import re
from collections.abc import Iterator

import yaml

from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.gpus.cdi.reading import parsed

SERVICES = {"k3s": ("k3s", "k3s-agent"), "rke2": ("rke2-server", "rke2-agent")}
"""The services of systemd, the second on a node without control plane, by the name of the directories."""
_UNIT_FOLDERS = ("/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system")
_COMMENT = re.compile(r"^\s*[#;].*$", re.MULTILINE)
_DATA_FLAG = re.compile(r"(?:--data-dir|\s['\"]?-d)['\"]?[=\s]+['\"]?(/[^\s'\"]*)")


def data_directory(host: HostRoot, name: str) -> str:
    """Return the directory with the state of K3s or RKE2, whose directories are called `name`."""
    commands = "\n".join(map(settled, (host.line(file) for file in unit_files(host, SERVICES[name]))))
    places = (f"/etc/systemd/system/{service}.service.env" for service in SERVICES[name])
    variables = "\n".join((commands, *map(host.line, places)))
    configured = [document(host, file) for file in config_files(host, name)]
    given = [value for each in configured if isinstance(each, dict) and isinstance(value := each.get("data-dir"), str)]
    by_variable = re.findall(rf"\b{name.upper()}_DATA_DIR=['\"]?(/[^\s'\"]*)", variables)
    found: list[str] = [f"/var/lib/rancher/{name}", *by_variable, *given, *_DATA_FLAG.findall(commands)]
    return found[-1].rstrip("/")


def config_files(host: HostRoot, name: str) -> Iterator[str]:
    """Yield the configuration files of K3s or RKE2, in whose order they count."""
    yield from host.matching(f"/etc/rancher/{name}/config.yaml")
    yield from host.matching(f"/etc/rancher/{name}/config.yaml.d/*.yaml")


def document(host: HostRoot, file: str) -> object:
    """Return what is in a file, YAML or JSON; None for a file that is neither."""
    try:
        return parsed((host.text(file) or "").encode(), ".yaml")
    except (UnreadableError, ValueError, RecursionError, yaml.YAMLError):
        return None


def settled(unit: str) -> str:
    """Return the text of a unit without comments, and with each command in one line."""
    return _COMMENT.sub("", unit).replace("\\\n", " ")


def unit_files(host: HostRoot, services: tuple[str, ...]) -> Iterator[str]:
    """Yield the files of units, and their drop-in files; one of the same name in a later folder replaces the first."""
    for service in services:
        units = [unit for folder in _UNIT_FOLDERS for unit in host.matching(f"{folder}/{service}.service")]
        yield from units[-1:]
        named = {
            file.rpartition("/")[2]: file
            for folder in _UNIT_FOLDERS
            for file in host.matching(f"{folder}/{service}.service.d/*.conf")
        }
        yield from (named[each] for each in sorted(named))

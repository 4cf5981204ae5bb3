"""The smallest CDI specification with which CUDA works: device nodes, the libraries of the driver, and their links.

Sources, all in NVIDIA/nvidia-container-toolkit: pkg/nvcdi/common-nvml.go, driver-nvml.go and wrapper.go (what a
specification has), pkg/lookup/library.go (where libraries are), internal/discover/mounts.go (options of mounts),
internal/discover/hooks.go and symlinks.go (the programs of hooks and their arguments).
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.core.cdi import OWN_KIND
from gpushare_plugin.core.device_nodes import CONTROL_DEVICES, device_nodes
from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.gpus.cdi.roots import Program, Roots

Document = dict[str, Any]
"""A CDI specification, or a part of one, as JSON."""

_LIBRARY_FOLDERS = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
_PROGRAMS = ("usr/bin/nvidia-smi", "bin/nvidia-smi")
_MOST_LINKS = 40
"""The links that Linux follows in a path (path_resolution(7))."""
_MOUNT_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


class DriverFilesError(GpushareError):
    """The files of the driver that containers need are not below the driver root."""


def smallest_spec(inventory: Inventory, roots: Roots) -> Document:
    """Return the smallest specification for the GPUs of `inventory`; raises DriverFilesError."""
    folder, libraries = _libraries(roots, inventory.driver_version)
    links = _links(folder, libraries)
    hook = roots.program("nvidia-cdi-hook", "nvidia-ctk")
    files = [folder / name for name in libraries]
    files += [file for name in _PROGRAMS if (file := roots.driver / name).is_file()][:1]
    edits: Document = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [
            _node(path, roots) for path in CONTROL_DEVICES if (roots.devices / path.removeprefix("/")).exists()
        ],
        "mounts": [_mount(*roots.driver_path(file)) for file in files],
    }
    in_containers = PurePosixPath(roots.driver_path(folder)[1])
    if hook is None:
        # Without a program that makes links, the library is mounted under each name.
        edits["mounts"] += [
            _mount(roots.driver_path(folder / library)[0], str(in_containers / link)) for link, library in links.items()
        ]
    else:
        edits["hooks"] = list(_hooks(hook, in_containers, links))
    document = {
        "kind": OWN_KIND,
        "devices": [device for gpu in inventory.gpus if (device := described(gpu, roots))],
        "containerEdits": edits,
    }
    return {"cdiVersion": version_for(document), **document}


def described(gpu: Gpu, roots: Roots) -> Document | None:
    """Return the device of a GPU in a specification; None where the device nodes of a MIG instance are unknown."""
    nodes = device_nodes(gpu)
    if nodes is None:
        return None
    return {"name": gpu.uuid, "containerEdits": {"deviceNodes": [_node(path, roots) for path in nodes]}}


def _node(path: str, roots: Roots) -> Document:
    on_host = str(PurePosixPath(roots.devices_on_host) / path.removeprefix("/"))
    return {"path": path} if on_host == path else {"path": path, "hostPath": on_host}


def _mount(on_host: str, in_container: str) -> Document:
    return {"hostPath": on_host, "containerPath": in_container, "options": _MOUNT_OPTIONS}


def _hooks(program: Program, folder: PurePosixPath, links: Mapping[str, str]) -> Iterator[Document]:
    """Yield the hooks of every container; a program of the toolkit since 1.12 knows both."""
    if links:
        pairs = (("--link", f"{library}::{folder / link}") for link, library in links.items())
        yield _hook(program, "create-symlinks", *(word for pair in pairs for word in pair))
    yield _hook(program, "update-ldcache", "--folder", str(folder))


def _hook(program: Program, *arguments: str) -> Document:
    name = PurePosixPath(program.path).name
    # nvidia-ctk has the hooks below `hook`, nvidia-cdi-hook has nothing else.
    words = [name, "hook"] if name == "nvidia-ctk" else [name]
    return {"hookName": "createContainer", "path": program.path, "args": [*words, *arguments]}


def _libraries(roots: Roots, version: str) -> tuple[Path, Sequence[str]]:
    """Return the folder of the driver's libraries, and the names of the libraries of this version."""
    for name in _LIBRARY_FOLDERS:
        folder = roots.driver / name
        if (folder / f"libcuda.so.{version}").is_file():
            return folder, sorted(path.name for path in folder.glob(f"lib*.so.{version}"))
    raise DriverFilesError(
        f"no libcuda.so.{version} below {roots.driver} in this container; mount the driver of the host there, as the "
        "chart does with nvidiaDriverRoot"
    )


def _links(folder: Path, libraries: Sequence[str]) -> Mapping[str, str]:
    """Return the links in `folder` that lead to `libraries`, each with the name of its library."""
    targets = {path.name: path.readlink().name for path in folder.glob("lib*.so*") if path.is_symlink()}
    # Programs open libcuda.so, which only development packages bring.
    targets.setdefault("libcuda.so", next(name for name in libraries if name.startswith("libcuda.so.")))
    found = {}
    for link in sorted(targets):
        name = link
        for _ in range(_MOST_LINKS):
            name = targets.get(name, name)
        if name in libraries and link not in libraries:
            found[link] = name
    return found


def version_for(document: Document) -> str:
    """Return the lowest version of the CDI specification that has the fields which gpushare writes.

    Source: `requiredVersion` in cncf-tags/container-device-interface, specs-go/version.go.
    """
    edits = [document["containerEdits"], *(device["containerEdits"] for device in document["devices"])]
    has_host_path = any("hostPath" in node for each in edits for node in each.get("deviceNodes") or ())
    return "0.5.0" if has_host_path else "0.3.0"

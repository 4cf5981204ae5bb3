"""A CDI specification by `nvidia-ctk cdi generate`, NVIDIA's own generator, where the host has it.

Sources, in NVIDIA/nvidia-container-toolkit: cmd/nvidia-ctk/cdi/generate/generate.go (options; `--dev-root` since 1.15,
`--nvidia-ctk-path` in all versions), cmd/nvidia-ctk-installer/toolkit/installer/executables.go (nvidia-ctk.real).
"""

import json
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.text import in_words, visible
from gpushare_plugin.core.cdi import OWN_KIND
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.cdi.reading import LARGEST_FILE
from gpushare_plugin.gpus.cdi.roots import Program, Roots
from gpushare_plugin.gpus.cdi.smallest import Document, described, version_for

TIMEOUT = 20.0
"""Seconds that `nvidia-ctk` may take; with many GPUs, NVML alone takes some.

Less than the time without an answer after which the driver counts as unresponsive: one look at the GPUs asks both.
"""

_LONGEST_COMPLAINT = 300


class ToolkitError(GpushareError):
    """`nvidia-ctk` made no specification; the message says why."""


def generator(roots: Roots) -> Program | None:
    """Return the program `nvidia-ctk`; None where the host has none, or where this container does not show it.

    With NVIDIA's operator, `nvidia-ctk` is a shell script with paths of the host around `nvidia-ctk.real`.
    """
    return roots.program("nvidia-ctk.real", "nvidia-ctk")


def generated_spec(program: Program, inventory: Inventory, roots: Roots, scratch: Path) -> Document:
    """Return the specification that `nvidia-ctk` makes for the GPUs of `inventory`; raises ToolkitError.

    `scratch` is a directory in which files can be written.
    """
    try:
        with tempfile.TemporaryDirectory(dir=scratch, prefix=".gpushare-") as folder:
            document = _run(program, roots, Path(folder))
    except (OSError, subprocess.SubprocessError, ValueError, RecursionError) as error:
        raise ToolkitError(f"{program.path} cannot be used: {in_words(error)}") from error
    if not isinstance(document, dict) or document.get("kind") != OWN_KIND:
        raise ToolkitError(f"{program.path} wrote no specification of the kind {OWN_KIND}")
    try:
        return _for_gpus(_on_host(document, roots), inventory, roots)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ToolkitError(f"{program.path} wrote a specification of another form: {in_words(error)}") from error


def _run(program: Program, roots: Roots, folder: Path) -> Any:
    output = folder / "spec.json"
    vendor, _, kind = OWN_KIND.partition("/")
    hook = roots.program("nvidia-cdi-hook", "nvidia-ctk") or program
    command = [
        *(str(program.here), "cdi", "generate", "--format=json", "--mode=nvml", "--device-name-strategy=uuid"),
        *(f"--vendor={vendor}", f"--class={kind}", f"--output={output}", f"--nvidia-ctk-path={hook.path}"),
        *(f"--driver-root={roots.driver}", f"--dev-root={roots.devices}"),
    ]
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "TMPDIR": str(folder)}
    with (folder / "complaints").open("w+b") as complaints:
        done = subprocess.run(  # noqa: S603 - NVIDIA's program, found on the host
            command,
            stdin=subprocess.DEVNULL,
            stdout=complaints,
            stderr=complaints,
            env=environment,
            timeout=TIMEOUT,
            check=False,
        )
        if done.returncode:
            complaints.seek(max(0, complaints.tell() - _LONGEST_COMPLAINT))
            said = visible(" ".join(complaints.read(_LONGEST_COMPLAINT).decode("utf-8", "replace").split()))
            raise subprocess.SubprocessError(f"exit status {done.returncode}: {said}")
    content = read_regular(output, LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError(f"wrote more than {LARGEST_FILE} bytes")
    return json.loads(content)


def _on_host(document: Document, roots: Roots) -> Document:
    """Return a specification with the paths of the host instead of paths in this container."""
    for edits in (document.get("containerEdits") or {}, *(each["containerEdits"] for each in document["devices"])):
        for mount in edits.get("mounts") or ():
            mount["hostPath"] = _moved(mount["hostPath"], roots.driver, roots.driver_on_host)
        for node in edits.get("deviceNodes") or ():
            on_host = _moved(node.get("hostPath") or node["path"], roots.devices, roots.devices_on_host)
            node.pop("hostPath", None)
            if on_host != node["path"]:
                node["hostPath"] = on_host
    return document


def _moved(path: str, root: Path, target: str) -> str:
    return str(Path(target) / Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _for_gpus(document: Document, inventory: Inventory, roots: Roots) -> Document:
    """Return a specification with exactly the GPUs of `inventory`.

    NVIDIA's generator describes no card in MIG mode, and adds a device `all`, which nobody gets here.
    """
    made = {device["name"]: device for device in document["devices"]}
    devices: Iterable[Document | None] = (made.get(gpu.uuid) or described(gpu, roots) for gpu in inventory.gpus)
    document = {**document, "devices": [device for device in devices if device]}
    versions = document["cdiVersion"], version_for(document)
    return {**document, "cdiVersion": max(versions, key=lambda version: [int(part) for part in version.split(".")])}

"""Stands for `nvidia-ctk cdi generate`: its options and the form of its answer; the GPUs are in a file beside it.

Written after cmd/nvidia-ctk/cdi/generate/generate.go and pkg/nvcdi in NVIDIA/nvidia-container-toolkit. It needs NVML,
of which only the library below the driver root matters here, and writes paths below the roots that it was given.
"""

import argparse
import json
import sys
from pathlib import Path

parser = argparse.ArgumentParser(prog="nvidia-ctk", allow_abbrev=False)
parser.add_argument("words", nargs=2)
parser.add_argument("--output")
parser.add_argument("--format", choices=["json", "yaml"])
parser.add_argument("--mode", choices=["auto", "nvml"])
parser.add_argument("--device-name-strategy", choices=["index", "uuid", "type-index"])
parser.add_argument("--driver-root")
parser.add_argument("--dev-root")
parser.add_argument("--nvidia-ctk-path", "--nvidia-cdi-hook-path")
parser.add_argument("--vendor")
parser.add_argument("--class", dest="kind")
options = parser.parse_args()
assert options.words == ["cdi", "generate"]
here = Path(__file__)
with here.with_name("calls").open("a") as calls:
    calls.write("\n")
libraries = sorted(Path(options.driver_root, "usr/lib/x86_64-linux-gnu").glob("lib*.so.*.*"))
if not libraries:
    sys.exit("failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND")
uuids = here.with_name("gpus").read_text().split()
nodes = [{"path": f"/dev/nvidia{minor}"} for minor in range(len(uuids))]
devices = [{"name": uuid, "containerEdits": {"deviceNodes": [node]}} for uuid, node in zip(uuids, nodes, strict=True)]
control = Path(options.dev_root, "dev/nvidiactl")
mounts = [
    {
        "hostPath": str(path),
        "containerPath": f"/{path.relative_to(options.driver_root)}",
        "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
    }
    for path in libraries
]
hook = {
    "hookName": "createContainer",
    "path": options.nvidia_ctk_path,
    "args": [Path(options.nvidia_ctk_path).name, "update-ldcache", "--folder", "/usr/lib/x86_64-linux-gnu"],
    "env": ["NVIDIA_CTK_DEBUG=false"],
}
spec = {
    "cdiVersion": "0.3.0",
    "kind": f"{options.vendor}/{options.kind}",
    "devices": [*devices, {"name": "all", "containerEdits": {"deviceNodes": nodes}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": str(control)}],
        "hooks": [hook],
        "mounts": mounts,
    },
}
Path(options.output).write_text(json.dumps(spec))

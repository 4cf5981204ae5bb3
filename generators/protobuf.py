"""Generates the protobuf code from `proto/`, or checks that the committed code is up to date.

`python -m generators.protobuf` exits 1 when it is not; `--write` writes it.
"""

import filecmp
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROTO = ROOT / "proto"
PACKAGE = Path("gpushare_plugin/kubelet/api")


def generate(target: Path) -> list[Path]:
    """Write the code of every .proto file below `target` and return the files, relative to it."""
    plugins = Path(sys.executable).parent
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={PROTO}",
            f"--plugin=protoc-gen-mypy={plugins / 'protoc-gen-mypy'}",
            f"--plugin=protoc-gen-mypy_grpc={plugins / 'protoc-gen-mypy_grpc'}",
            *outputs,
            *map(str, sorted(PROTO.rglob("*.proto"))),
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return sorted(path.relative_to(target) for path in (target / PACKAGE).glob("*_pb2*.py*"))


def main() -> int:
    """Write or compare, as the command line says."""
    if "--write" in sys.argv[1:]:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        files = generate(Path(folder))
        committed = sorted(path.relative_to(ROOT) for path in (ROOT / PACKAGE).glob("*_pb2*.py*"))
        stale = [
            path
            for path in {*files, *committed}
            if path not in files
            or path not in committed
            or not filecmp.cmp(Path(folder, path), ROOT / path, shallow=False)
        ]
    for path in sorted(stale):
        print(f"{path} is out of date with proto/; run `make generate`", file=sys.stderr)  # noqa: T201 - a command
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

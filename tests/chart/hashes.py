"""Writes image/requirements.txt: what the image is built from, each wheel by the hash that the index tells of it.

`python -m tests.chart.hashes`, after a change of constraints.txt or of the dependencies; it asks the index, and
downloads nothing that pip can do without.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict

from tests.chart.rendering import ROOT

REQUIREMENTS = ROOT / "image/requirements.txt"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")

_HEADER = """\
# What the image is built from, for Python {pythons} on amd64 and arm64; `make hashes` writes this file.
"""


def direct() -> list[str]:
    """Return the requirements that this project names, and that of its build."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [*project["project"]["dependencies"], *project["build-system"]["requires"]]


def normal(name: str) -> str:
    """Return the one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _report(python: str, machine: str) -> list[tuple[str, str]]:
    """Return each requirement, with its version, and the hash of the wheel that fits."""
    options = ["--dry-run", "--quiet", "--ignore-installed", "--target", "/nowhere", "--only-binary=:all:"]
    options += ["--constraint", str(ROOT / "constraints.txt"), "--python-version", python, "--report", "-"]
    options += ["--platform", f"manylinux_2_28_{machine}", "--platform", f"manylinux2014_{machine}"]
    command = [sys.executable, "-m", "pip", "install", *options, *direct()]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return [
        (
            f"{normal(each['metadata']['name'])}=={each['metadata']['version']}",
            each["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for each in told["install"]
    ]


def main() -> None:
    """Ask for all of them, and write the file."""
    hashes = defaultdict(set)
    for python in PYTHONS:
        for machine in MACHINES:
            for requirement, digest in _report(python, machine):
                hashes[requirement].add(digest)
    blocks = [
        " \\\n".join([requirement, *(f"    --hash=sha256:{digest}" for digest in sorted(hashes[requirement]))])
        for requirement in sorted(hashes)
    ]
    REQUIREMENTS.write_text(_HEADER.format(pythons=f"{PYTHONS[0]} to {PYTHONS[-1]}") + "\n".join(blocks) + "\n")


if __name__ == "__main__":
    main()

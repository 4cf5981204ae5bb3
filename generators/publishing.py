"""What the workflow publishes, and in words what it does not and why: `python -m generators.publishing`.

The workflow asks this before anything is built. Its answer is lines `name=true` or `name=false` on standard output, for
the workflow, and sentences on standard error, for people. docs/releasing.md has the variables that it reads. It needs
nothing but Python: the workflow runs it before anything is installed.
"""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from gpushare_plugin import __version__

ROOT = Path(__file__).parent.parent

_PINNED = r"\S+@sha256:[0-9a-f]{64}"

Answer = dict[str, str]
"""For each thing that can be published the reason why it is not, empty where it is."""


def main() -> None:
    """Print what is published; exit with the reason where the versions or the base image forbid to go on."""
    if mistake := base_mistake(os.environ.get("BASE", "")) or version_mistake(ROOT):
        sys.exit(mistake)
    for thing, reason in answer(os.environ, ROOT).items():
        sys.stdout.write(f"{thing}={'false' if reason else 'true'}\n")
        sys.stderr.write(f"{thing}: {f'skipped, because {reason}' if reason else 'published'}\n")


def base_mistake(base: str) -> str:
    """Return what is wrong with the base of the image, which must have a digest; empty if nothing is."""
    if re.fullmatch(_PINNED, base):
        return ""
    return (
        f"BASE is {base!r}, and NAME:TAG@sha256:… was expected: the registry gave no digest for the base image of the "
        "Dockerfile; run the workflow again, or correct ARG BASE there"
    )


def version_mistake(root: Path) -> str:
    """Return which files have another version than the program; empty if none has."""
    chart, dockerfile = root / "charts/gpushare/Chart.yaml", root / "Dockerfile"
    found = {
        "version in Chart.yaml": re.findall(r"^version: (\S+)$", chart.read_text(), re.MULTILINE),
        "appVersion in Chart.yaml": re.findall(r"^appVersion: (\S+)$", chart.read_text(), re.MULTILINE),
        "ARG VERSION in Dockerfile": re.findall(r"^ARG VERSION=(\S+)$", dockerfile.read_text(), re.MULTILINE),
    }
    other = [f"{place} is {', '.join(versions)}" for place, versions in found.items() if versions != [__version__]]
    return f"gpushare has the version {__version__}, but {'; '.join(other)}: make them equal" if other else ""


def answer(environment: Mapping[str, str], root: Path) -> Answer:
    """Return what is published in this environment; raises SystemExit for a tag of another version."""
    nothing = _nothing(environment, root)
    return {
        "files": nothing,
        "registry": nothing or _unset(environment, "REGISTRY", "REGISTRY_USER", "REGISTRY_PASSWORD"),
        "wheel": nothing or _not_true(environment, "PUBLISH_WHEEL"),
    }


def _nothing(environment: Mapping[str, str], root: Path) -> str:
    if environment.get("GITHUB_REF_TYPE") != "tag":
        return "only a tag is published"
    if (tag := environment.get("GITHUB_REF_NAME")) != f"v{__version__}":
        sys.exit(f"the tag is {tag}, and v{__version__} was expected, the version of gpushare: correct one of them")
    if not (root / "LICENSE").exists():
        return "there is no file LICENSE: docs/releasing.md says what its owner decides"
    return ""


def _unset(environment: Mapping[str, str], *names: str) -> str:
    missing = [name for name in names if not environment.get(name)]
    return f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set" if missing else ""


def _not_true(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "")
    return "" if value == "true" else f"{name} is {value!r}, and not 'true'"


if __name__ == "__main__":
    main()

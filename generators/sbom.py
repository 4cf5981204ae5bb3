"""The bill of materials of the image (CycloneDX 1.6): its Python packages, with the hashes of their wheels.

What the base image contains is not in it; a scanner of images finds that.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from generators.pages import DOCUMENTS

_IMAGE = DOCUMENTS.parent / "image"


def bill_of_materials(version: str, seconds: int) -> str:
    """Return the SBOM of this version as JSON, dated by `seconds` since 1970; the same input gives the same text."""
    requirements = (_IMAGE / "requirements.txt").read_text()
    bom = Bom(serial_number=uuid5(NAMESPACE_OID, f"gpushare {version} {seconds} {requirements}"))
    bom.metadata.timestamp = datetime.fromtimestamp(seconds, UTC)
    whole = Component(name="gpushare", version=version, type=ComponentType.APPLICATION, bom_ref=f"gpushare=={version}")
    bom.metadata.component = whole
    components = list(_packages(requirements, _removed_after_the_build(_IMAGE / "install.sh")))
    for each in components:
        bom.components.add(each)
    bom.register_dependency(whole, components)
    return JsonV1Dot6(bom).output_as_string(indent=1) + "\n"


def _packages(requirements: str, removed: frozenset[str]) -> Iterator[Component]:
    for name, version, hashes in re.findall(r"^(\S+)==(\S+)((?: \\\n    --hash=\S+)+)$", requirements, re.MULTILINE):
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            bom_ref=f"{name}=={version}",
            purl=PackageURL("pypi", name=name, version=version),
            scope=ComponentScope.EXCLUDED if name in removed else ComponentScope.REQUIRED,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in re.findall(r"sha256:(\w+)", hashes)],
        )


def _removed_after_the_build(script: Path) -> frozenset[str]:
    """Return the packages that the image does not keep: build tools, and what gpushare does not use."""
    (names,) = re.findall(r"uninstall --yes ((?:.*\\\n)*.*)$", script.read_text(), re.MULTILINE)
    return frozenset(names.replace("\\", " ").split())

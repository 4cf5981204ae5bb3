"""A release in one folder: `make release`, which needs neither a network nor a service, except for the image.

That is the wheel, the image where a tool can build one, the chart as the package that `helm push` uploads, the krew
plugin with its manifest, the bill of materials, and SHA256SUMS. All but the image are the same, byte by byte, for the
same commit: what depends on the time has that of the commit, or SOURCE_DATE_EPOCH.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import click
import helm_python

from generators.pages import DOCUMENTS
from generators.sbom import bill_of_materials
from gpushare_plugin import __version__

ROOT = DOCUMENTS.parent
CHECKSUMS = "SHA256SUMS"

_TOOLS = {"docker": ("docker", "info"), "podman": ("podman", "info"), "buildah": ("buildah", "info")}
"""Tools that build images, and the command that succeeds where they can: a docker without its daemon cannot."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--base", metavar="IMAGE", help="Base of the image, such as python:3.13-slim@sha256:….")
@click.option("--repository", metavar="NAME", help="Where the image is published: the chart's image.repository.")
def release(folder: Path, base: str | None, repository: str | None) -> None:
    """Build everything that a release consists of into FOLDER; files there that are not of a release stay."""
    folder.mkdir(parents=True, exist_ok=True)
    seconds = source_date()
    image = folder / f"gpushare-image-{__version__}.tar"
    image.unlink(missing_ok=True)  # of an earlier run: it may be skipped in this one
    made = [wheel(folder, seconds), chart(folder, seconds, repository), *krew(folder, seconds), sbom(folder, seconds)]
    if tool := image_tool():
        build_image(tool, image, seconds, base)
        made.append(image)
    else:
        click.echo(
            f"image: skipped, because none of {', '.join(_TOOLS)} works here; docs/install.md says how to build it"
        )
    lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(made)]
    (folder / CHECKSUMS).write_text("".join(lines))
    for each in [*sorted(made), folder / CHECKSUMS]:
        click.echo(each)


def source_date() -> int:
    """Return the seconds since 1970 that stand for the time of the release."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise click.ClickException(
            f"the time of the commit is not known ({error}): release from a clone, or set SOURCE_DATE_EPOCH"
        ) from error


def wheel(folder: Path, seconds: int) -> Path:
    """Build the wheel."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder.resolve())]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    return folder / f"gpushare-{__version__}-py3-none-any.whl"


def chart(folder: Path, seconds: int, repository: str | None) -> Path:
    """Package the chart as Helm does, with one time and one owner for all files, and the repository of its image."""
    target = folder / f"gpushare-{__version__}.tgz"
    with tempfile.TemporaryDirectory() as place:
        packaged = helm_python.package(ROOT / "charts/gpushare", destination=place)
        content = io.BytesIO()
        with (
            tarfile.open(packaged) as given,
            tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as made,
        ):
            for file in sorted(given.getmembers(), key=lambda each: each.name):
                text = _content(given, file, repository)
                plain = tarfile.TarInfo(file.name)
                plain.size, plain.mtime, plain.mode = len(text), seconds, 0o644
                made.addfile(plain, io.BytesIO(text))
    target.write_bytes(gzip.compress(content.getvalue(), mtime=seconds))
    return target


def _content(archive: tarfile.TarFile, file: tarfile.TarInfo, repository: str | None) -> bytes:
    """Return a file of the chart; its values name the published image, so that users need not."""
    member = archive.extractfile(file)
    text = member.read() if member else b""
    if not repository or file.name != "gpushare/values.yaml":
        return text
    before, line, after = text.partition(b"\n  repository: gpushare\n")
    if not line:
        raise click.ClickException("values.yaml of the chart has no line 'repository: gpushare': correct this program")
    return before + f"\n  repository: {repository}\n".encode() + after


def krew(folder: Path, seconds: int) -> list[Path]:
    """Pack the krew plugin, and write its manifest; the addresses in that are left to whoever publishes it."""
    archive, manifest = folder / f"kubectl-gpushare-{__version__}.tar.gz", folder / "krew-gpushare.yaml"
    program = (ROOT / "krew/kubectl-gpushare").read_bytes()
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as made:
        plain = tarfile.TarInfo("kubectl-gpushare")
        plain.size, plain.mtime, plain.mode = len(program), seconds, 0o755
        made.addfile(plain, io.BytesIO(program))
    archive.write_bytes(gzip.compress(content.getvalue(), mtime=seconds))
    template = (ROOT / "krew/gpushare.yaml").read_text().partition("apiVersion:")
    text = f"# Before this is published, fill in ARCHIVE_URL and HOMEPAGE_URL.\n{template[1]}{template[2]}"
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    manifest.write_text(text.replace("vVERSION", f"v{__version__}").replace('"SHA256"', f'"{sha256}"'))
    return [archive, manifest]


def sbom(folder: Path, seconds: int) -> Path:
    """Write the bill of materials."""
    target = folder / f"gpushare-{__version__}.cdx.json"
    target.write_text(bill_of_materials(__version__, seconds))
    return target


def image_tool() -> str | None:
    """Return a tool that can build the image here, None if there is none."""
    for name, check in _TOOLS.items():
        if shutil.which(name) and subprocess.run(check, capture_output=True, check=False).returncode == 0:
            return name
    return None


def build_image(tool: str, target: Path, seconds: int, base: str | None) -> None:
    """Build the image, and save it as a file that `docker load`, `podman load` and `skopeo copy` read."""
    name = f"gpushare:{__version__}"
    build = [tool, "build", "--tag", name, "--build-arg", f"VERSION={__version__}"]
    build += ["--build-arg", f"BASE={base}"] if base else []
    build += [] if tool == "docker" else ["--timestamp", str(seconds)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds)}
    subprocess.run([*build, str(ROOT)], env=environment, check=True)
    save = (
        [tool, "push", name, f"oci-archive:{target}"]
        if tool == "buildah"
        else [tool, "save", "--output", str(target), name]
    )
    subprocess.run(save, check=True)


if __name__ == "__main__":
    release()

"""One archive that shows what gpushare does on the GPUs of a machine without a network: `make gpu-bundle PYTHON=3.12`.

The archive holds gpushare, the steps of `make gpu` and all packages, unpacked for one version of Python on x86-64, and
a script `gpu` that runs them. The machine needs that Python and NVIDIA's driver, and neither pip nor a compiler.
"""

import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

import click

from generators.pages import DOCUMENTS

ROOT = DOCUMENTS.parent
LARGEST = 60 << 20
"""The most bytes of an archive."""
_COMPRESSION = 6
"""The level of gzip: 9 takes twice the time, and saves one byte in a hundred."""

_PLATFORMS = (*(f"manylinux_2_{minor}_x86_64" for minor in (17, 27, 28)), "manylinux2014_x86_64", "manylinux1_x86_64")
_OURS = ("gpushare_plugin", "real_gpus")
_SCRIPT = """\
#!/bin/sh
# Shows what gpushare does on the GPUs of this machine; --help has the options.
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH="$here/packages" PYTHONDONTWRITEBYTECODE=1 GRPC_VERBOSITY=NONE
exec python{version} -m real_gpus "$@"
"""


@click.command()
@click.argument("version")
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
def main(version: str, archive: Path) -> None:
    """Write ARCHIVE for Python VERSION, such as 3.12."""
    with tempfile.TemporaryDirectory() as place:
        top = Path(place, archive.name.removesuffix(".tar.gz"))
        packages = top / "packages"
        packages.mkdir(parents=True)
        for wheel in _downloaded(version, Path(place, "wheels")):
            shutil.unpack_archive(wheel, packages, "zip")
        for name in _OURS:
            shutil.copytree(ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
        script = top / "gpu"
        script.write_text(_SCRIPT.format(version=version))
        script.chmod(0o755)
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:gz", compresslevel=_COMPRESSION) as written:
            written.add(top, top.name, filter=_of_root)
    if (size := archive.stat().st_size) > LARGEST:
        raise click.ClickException(f"{archive} has {size} bytes, expected {LARGEST} at most: leave out a package")
    click.echo(
        f"{archive} ({size >> 20} MiB): unpack it on the machine with the GPU, and run `./gpu --report report.md`"
    )


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Let a file in the archive be root's, and readable for all, whoever made the archive."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= 0o755 if member.isdir() or member.mode & stat.S_IXUSR else 0o644
    return member


def _downloaded(version: str, folder: Path) -> list[Path]:
    """Download the wheels of all packages that gpushare needs, in the versions of constraints.txt."""
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:"),
        *("--dest", str(folder), "--constraint", str(ROOT / "constraints.txt")),
        *("--implementation", "cp", "--python-version", version),
        *(f"--platform={platform}" for platform in _PLATFORMS),
        *needed,
    ]
    if subprocess.run(command, check=False).returncode:
        raise click.ClickException(f"the packages for Python {version} cannot be downloaded, see above")
    return sorted(folder.iterdir())


if __name__ == "__main__":
    main()

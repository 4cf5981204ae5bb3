"""The file that says which GPUs are given by claim: the ledger between the device plugin and claims.

A GPU is in the file before claims can get the GPU, and until the device plugin may offer its units again. So a daemon
that starts with another config knows which GPUs to keep from the device plugin until their claims have ended. A copy of
the file is where a daemon sees it that does not see the directory of the DRA driver.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.files.replacement import remove_file, replace_file
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import in_words
from gpushare_plugin.kubelet.claim_files import GIVEN_BY_CLAIM, GIVEN_VERSION, LARGEST_CLAIM_FILE, version_of


class ClaimSharing(Struct, frozen=True):
    """How claims share a GPU; while claims hold the GPU, the GPU is not shared in another way."""

    way: str
    """The way."""
    isolation: str
    """The name of the isolation."""


UNKNOWN = ClaimSharing("unknown", "unknown")
"""How claims share a GPU of which it is only known that claims may have the GPU."""


class GivenRead(Struct, frozen=True):
    """The content of the file."""

    gpus: Mapping[str, ClaimSharing]
    """How claims share the GPUs that the file names, by UUID."""
    trouble: str = ""
    """Why the file is not understood, the consequence and the remedy, for people; empty for a file that is."""
    whole: bool = True
    """Whether the file names all GPUs that belong to claims."""


class NewerFileError(GpushareError):
    """A newer version of gpushare wrote the file; the message gives path, consequence and remedy."""


class _NamedByClaim(Struct):
    gpus: Mapping[str, msgspec.Raw]


class _GivenContent(Struct, frozen=True):
    gpus: Mapping[str, ClaimSharing]
    version: int = GIVEN_VERSION


class GivenFile:
    """The file with the GPUs that are given by claim, and its copies."""

    def __init__(self, *directories: Path) -> None:
        """Use the file in each of the `directories`, of which the first is that of the DRA driver."""
        self._paths = tuple(each / GIVEN_BY_CLAIM for each in directories)
        self.path = self._paths[0]
        """The file in the first directory."""

    def read(self) -> GivenRead:
        """Return the content of the file; a missing file names no GPU.

        A GPU that the file or a copy names belongs to claims: a daemon can have ended while it wrote, and an earlier
        version writes no copy.
        """
        found = [_read(path) for path in reversed(self._paths)]
        gpus = {uuid: sharing for each in found for uuid, sharing in each.gpus.items()}
        trouble = "; ".join(each.trouble for each in found if each.trouble)
        return GivenRead(gpus, trouble, whole=all(each.whole for each in found))

    def says(self, gpus: Mapping[str, ClaimSharing]) -> bool:
        """Return whether the file and each copy name exactly these GPUs."""
        return all(_read(path) == GivenRead(gpus) for path in self._paths)

    def write(self, gpus: Mapping[str, ClaimSharing]) -> None:
        """Write which GPUs are given by claim; without any, there is no file.

        Raises OSError, and NewerFileError for a file of a newer version, which stays as the file is.
        """
        for path in self._paths:
            _check_version(path)
        for path in self._paths:
            if gpus:
                path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, msgspec.json.encode(_GivenContent(gpus)).decode())
            else:
                remove_file(path)


def _read(path: Path) -> GivenRead:
    try:
        content = read_regular(path, LARGEST_CLAIM_FILE)
        if (version := version_of(content)) > GIVEN_VERSION:
            return _newer(path, version, content)
        return GivenRead(msgspec.json.decode(content, type=_GivenContent).gpus)
    except FileNotFoundError:
        return GivenRead({})
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        return _damaged(path, in_words(error))


def _check_version(path: Path) -> None:
    """Raise NewerFileError for a file of a newer version."""
    with suppress(OSError, ValueError):
        content = read_regular(path, LARGEST_CLAIM_FILE)
        if (version := version_of(content)) > GIVEN_VERSION:
            raise NewerFileError(_newer(path, version, content).trouble)


def _newer(path: Path, version: int, content: bytes) -> GivenRead:
    """Return the GPUs that a file of a newer version names, as far as this version can read the content."""
    try:
        named = msgspec.json.decode(content, type=_NamedByClaim).gpus
    except msgspec.MsgspecError:
        named = None
    kept = "the GPUs that the file names" if named is not None else "all GPUs but those with units in use"
    trouble = (
        f"{path} was written by a newer version of gpushare (version {version}, this one reads up to {GIVEN_VERSION}) "
        f"and is left alone: {kept} stay away from the device plugin; go back to the newer version, or end the pods "
        "with claims of this node and then remove the file"
    )
    return GivenRead({uuid: _sharing(raw) for uuid, raw in (named or {}).items()}, trouble, whole=named is not None)


def _damaged(path: Path, reason: str) -> GivenRead:
    trouble = (
        f"{path} cannot be used ({reason}), so it is not known which GPUs belong to claims: all GPUs but those with "
        "units in use stay away from the device plugin, each until no record of a claim and no claim of the API server "
        "names the GPU; check that the file can be written if that lasts"
    )
    return GivenRead({}, trouble, whole=False)


def _sharing(raw: msgspec.Raw) -> ClaimSharing:
    try:
        return msgspec.json.decode(raw, type=ClaimSharing)
    except msgspec.MsgspecError:
        return UNKNOWN

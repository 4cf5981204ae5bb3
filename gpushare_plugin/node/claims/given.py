"""The file that says which GPUs are given by claim: the ledger between the device plugin and claims.

A GPU is in the file before claims can get the GPU, and until the device plugin may offer its units again. So a daemon
that starts with another config knows which GPUs to keep from the device plugin until their claims have ended.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import structlog

from gpushare_plugin.base.files.regular_file import read_regular
from gpushare_plugin.base.files.replacement import remove_file, replace_file
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import in_words
from gpushare_plugin.kubelet.paths import GIVEN_BY_CLAIM

_log = structlog.get_logger()

VERSION = 1
"""The version of the meaning of the file."""
LARGEST_FILE = 1 << 18
"""The size limit of the file in bytes."""


class ClaimSharing(Struct, frozen=True):
    """How claims share a GPU; while claims hold the GPU, the GPU is not shared in another way."""

    way: str
    """The way."""
    isolation: str
    """The name of the isolation."""


class _GivenContent(Struct, frozen=True):
    gpus: Mapping[str, ClaimSharing]
    version: int = VERSION


class GivenFile:
    """The file with the GPUs that are given by claim."""

    def __init__(self, directory: Path) -> None:
        """Use the file in the directory of the DRA driver."""
        self.path = directory / GIVEN_BY_CLAIM

    def read(self) -> Mapping[str, ClaimSharing]:
        """Return how the GPUs in the file are shared, by UUID; a file that cannot be used counts as empty."""
        try:
            given = msgspec.json.decode(read_regular(self.path, LARGEST_FILE), type=_GivenContent)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            return self._unusable(in_words(error))
        if given.version > VERSION:
            return self._unusable(f"version {given.version} is newer than {VERSION}")
        return given.gpus

    def _unusable(self, reason: str) -> Mapping[str, ClaimSharing]:
        _log.error("given_gpus_unreadable", path=str(self.path), reason=reason)
        return {}

    def write(self, gpus: Mapping[str, ClaimSharing]) -> None:
        """Say which GPUs are given by claim; without any, there is no file. Raises OSError."""
        if gpus:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, msgspec.json.encode(_GivenContent(gpus)).decode())
        else:
            remove_file(self.path)

"""The CDI specification that gpushare writes: made, kept true while GPUs and driver change, and removed at the end."""

import json
import threading
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import structlog

from gpushare_plugin.base.files.replacement import replace_file
from gpushare_plugin.base.text import in_words
from gpushare_plugin.core.cdi import OWN_KIND
from gpushare_plugin.core.device_nodes import device_nodes
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.gpus.cdi.roots import Roots
from gpushare_plugin.gpus.cdi.smallest import Document, DriverFilesError, smallest_spec
from gpushare_plugin.gpus.cdi.toolkit import ToolkitError, generated_spec, generator

_log = structlog.get_logger()


def own_file(directory: Path) -> Path:
    """Return the file in `directory` for gpushare's own specification, named as the CDI library names files."""
    return directory / f"{OWN_KIND.replace('/', '-')}.json"


def own_trouble(directory: Path, inventory: Inventory, roots: Roots) -> str:
    """Return why a daemon could not write a specification into `directory`, for people; empty where a daemon can."""
    try:
        need(directory)
        if generator(roots) is None:
            smallest_spec(inventory, roots)
    except (OSError, DriverFilesError) as error:
        return in_words(error)
    return ""


def need(directory: Path) -> None:
    """Raise FileNotFoundError where the directory of CDI specifications is missing."""
    if not directory.is_dir():
        raise FileNotFoundError(f"{directory} does not exist here; mount the directory of the host, as the chart does")


class OwnSpec:
    """The file with gpushare's own specification."""

    def __init__(self, directory: Path) -> None:
        """Prepare to write into `directory`, the last one of the container runtime, which counts most."""
        self.file = own_file(directory)
        self.trouble = "none was written yet"
        """Why there is no specification, for people; empty with a specification."""
        self._identity: tuple[int, int, int] | None = None
        self._made_for: tuple[str, Roots] | None = None
        self._not_generated_for: tuple[str, Roots] | None = None
        self._described: Mapping[str, tuple[str, ...] | None] = {}
        self._writing = threading.Lock()
        self._closed = False

    def keep(self, inventory: Inventory, roots: Roots, described: AbstractSet[str]) -> None:
        """Write the specification where the file is not true for these GPUs; `trouble` says what fails.

        `described` has the UUIDs that the file describes now. A file that the next daemon of this node has written
        meanwhile stays.
        """
        wanted = {gpu.uuid: device_nodes(gpu) for gpu in inventory.gpus}
        made_for = inventory.driver_version, roots
        # A GPU that is gone stays described: a container on the GPU may start again when the GPU is back.
        true = made_for == self._made_for and wanted.items() <= self._described.items()
        ours = self._identity is not None and self._identity == self._found()
        known = {uuid for uuid, nodes in wanted.items() if nodes}
        by_another = self._identity is not None and not ours and described >= known
        if not inventory.gpus or (ours and true) or by_another:
            return
        try:
            need(self.file.parent)
            made_by, document = self._made(inventory, roots)
            with self._writing:
                if self._closed:  # while a program made the specification
                    return
                replace_file(self.file, json.dumps(document, indent=1))
                self._identity = self._found()
        except (OSError, DriverFilesError) as error:
            self._fail(in_words(error))
        else:
            self.trouble, self._made_for, self._described = "", made_for, wanted
            _log.info("cdi_spec_written", path=str(self.file), program=made_by, gpus=list(wanted))

    def remove(self) -> None:
        """Remove the file, and write no more; a file that another daemon has written meanwhile stays."""
        with self._writing:
            self._closed = True
        if self._identity is None or self._identity != self._found():
            return
        try:
            self.file.unlink()
        except OSError as error:
            _log.warning("cdi_spec_not_removed", path=str(self.file), reason=in_words(error))
        else:
            _log.info("cdi_spec_removed", path=str(self.file))

    def _made(self, inventory: Inventory, roots: Roots) -> tuple[str, Document]:
        """Return the program that made a specification, and the specification; raises OSError or DriverFilesError."""
        program, made_for = generator(roots), (inventory.driver_version, roots)
        if program is not None and made_for != self._not_generated_for:
            try:
                return program.here.name, generated_spec(program, inventory, roots, self.file.parent)
            except ToolkitError as error:
                self._not_generated_for = made_for  # otherwise the program would run and fail at every look
                _log.warning("cdi_generator_failed", reason=str(error))
        return "gpushare", smallest_spec(inventory, roots)

    def _fail(self, trouble: str) -> None:
        if trouble != self.trouble:
            _log.warning("cdi_spec_not_written", path=str(self.file), reason=trouble)
        self.trouble = trouble

    def _found(self) -> tuple[int, int, int] | None:
        try:
            state = self.file.stat()
        except OSError:
            return None
        return state.st_dev, state.st_ino, state.st_mtime_ns

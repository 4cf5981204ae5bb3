"""The CDI specification that gpushare writes: made, kept true while GPUs and driver change, and removed at the end."""

import json
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


class OwnSpec:
    """The file with gpushare's own specification."""

    def __init__(self, directory: Path) -> None:
        """Prepare to write into `directory`, the last one of the container runtime, which counts most."""
        self.file = directory / f"{OWN_KIND.replace('/', '-')}.json"
        self.trouble = "none was written yet"
        """Why there is no specification, for people; empty with a specification."""
        self._identity: tuple[int, int, int] | None = None
        self._made_for: tuple[str, Roots] | None = None
        self._not_generated_for: tuple[str, Roots] | None = None
        self._described: Mapping[str, tuple[str, ...] | None] = {}
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
        if self._closed or (ours and true) or by_another:
            return
        if not self.file.parent.is_dir():
            self._fail(f"{self.file.parent} does not exist here; mount the directory of the host, as the chart does")
            return
        try:
            made_by, document = self._made(inventory, roots)
            replace_file(self.file, json.dumps(document, indent=1))
        except (OSError, DriverFilesError) as error:
            self._fail(in_words(error))
        else:
            self.trouble, self._identity = "", self._found()
            self._made_for, self._described = made_for, wanted
            _log.info("cdi_spec_written", path=str(self.file), program=made_by, gpus=list(wanted))

    def remove(self) -> None:
        """Remove the file, and write no more; a file that another daemon has written meanwhile stays."""
        self._closed = True
        if self._identity is not None and self._identity == self._found():
            self.file.unlink(missing_ok=True)
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
        self.trouble, self._identity = trouble, None

    def _found(self) -> tuple[int, int, int] | None:
        try:
            state = self.file.stat()
        except OSError:
            return None
        return state.st_dev, state.st_ino, state.st_mtime_ns

"""A program of ours that another process can ask which of its functions run; see `ways`.

`python -m tests.project.traced SOCKET PYTHON -m PACKAGE ARGUMENTS…` runs the package as the command after SOCKET does.
"""

import json
import runpy
import socket
import sys
import threading
from importlib.util import find_spec
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

START, STOP = b"1", b"0"


class Recorder:
    """A profile function: notes which functions of a package run while it is recording.

    The bodies of modules and classes count for nothing, nor does what runs while a module is imported.
    """

    def __init__(self, package: Path) -> None:
        """Record the functions in this folder, once told to."""
        self._package = package
        self._folder = f"{package}/"
        self._entry = str(package / "__main__.py")
        self._recording = False
        self._found: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call; the profile of every thread calls this."""
        if not self._recording or event != "call" or (code := frame.f_code) in self._found:
            return
        is_function = code.co_flags & CO_OPTIMIZED  # the body of the entry point may begin after the recording
        if is_function and code.co_filename.startswith(self._folder) and not self._imports(frame):
            self._found.add(code)

    def start(self) -> None:
        """Record from now on, from nothing."""
        self._found = set()
        self._recording = True

    def stop(self) -> list[tuple[str, str]]:
        """Record no more, and return the functions that ran: the path of the module in the package, and the name."""
        self._recording = False
        found = self._found.copy()
        return sorted({(str(Path(code.co_filename).relative_to(self._package)), code.co_qualname) for code in found})

    def _imports(self, frame: FrameType | None) -> bool:
        """Return whether a module of the package, but its entry point, or a class is being executed around a frame."""
        while frame is not None:
            code = frame.f_code
            if not code.co_flags & CO_OPTIMIZED and code.co_filename.startswith(self._folder):
                return code.co_filename != self._entry
            frame = frame.f_back
        return False


def answer(recorder: Recorder, listening: socket.socket) -> None:
    """Start and stop the recorder as the one client says."""
    connection, _ = listening.accept()
    with connection:
        while command := connection.recv(1):
            if command == START:
                recorder.start()
                connection.sendall(b"\n")
            else:
                connection.sendall(json.dumps(recorder.stop()).encode() + b"\n")


def main() -> None:
    """Run the package with a recorder in all its threads."""
    path, _, _, package, *arguments = sys.argv[1:]
    found = find_spec(package)
    assert found is not None
    assert found.origin is not None
    recorder = Recorder(Path(found.origin).parent)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"{path}.new")
    listening.listen()
    Path(f"{path}.new").rename(path)  # who sees the path can connect
    threading.Thread(target=answer, args=(recorder, listening), daemon=True).start()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    sys.argv = [package, *arguments]
    runpy.run_module(package, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

"""The longest path of a Unix socket, and the message for a directory whose path leaves no room for a socket."""

from pathlib import Path

LONGEST_SOCKET_PATH = 107
"""Bytes of the longest Unix socket path (`sockaddr_un` in unix(7), less the terminating zero)."""


def why_too_long(directory: Path, longest_name: str, what: str) -> str | None:
    """Return why a socket named `longest_name` does not fit below `directory`, called `what`; None where it fits."""
    found, most = len(bytes(directory)), LONGEST_SOCKET_PATH - len(f"/{longest_name}")
    if found <= most:
        return None
    return (
        f"the path of {what}, {directory}, has {found} bytes; at most {most} are allowed, because the path of a socket "
        f"has at most {LONGEST_SOCKET_PATH}"
    )

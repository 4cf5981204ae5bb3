"""How long the path of a Unix socket may be, and what to say of a directory that leaves no room for one."""

from pathlib import Path

LONGEST_SOCKET_PATH = 107
"""Bytes of the longest Unix socket path (`sockaddr_un` in unix(7), less the terminating zero)."""


def why_too_long(directory: Path, longest_name: str, what: str) -> str | None:
    """Return why no socket of this name fits below `directory`, which is called `what`; None where it does."""
    found, most = len(bytes(directory)), LONGEST_SOCKET_PATH - len(f"/{longest_name}")
    if found <= most:
        return None
    return (
        f"the path of {what}, {directory}, has {found} bytes; at most {most} are allowed, because the path of a socket "
        f"has at most {LONGEST_SOCKET_PATH}"
    )

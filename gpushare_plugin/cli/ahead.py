"""What `gpushare run` begins before it is imported: NVML's initialisation, where it is certain how that is to be done.

Drivers of eight cards take a second and more to initialise, and the imports a third of one; so both run at the same
time. A process keeps the library that it loaded first. An option, a variable or a config can choose the library, and
parsing them needs the imports. So this module only searches them for such a choice. In doubt it begins nothing, and the
daemon initialises NVML itself once it has read its config.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpushare_plugin.config.loading.content import read_content
from gpushare_plugin.config.schema.names import CONTAINER_DRIVER_ROOT

_ROOT_KEY = b"containerDriverRoot"
_ROOT_OPTIONS = ("--container-driver-root", "--driver-root-ctr-path")
_NO_DAEMON = {"-h", "--help"}


def begin(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Begin for a command line without the program's name, and its environment; raises nothing."""
    # Whatever fails here fails again where it is logged.
    with contextlib.suppress(Exception):
        root = driver_root(arguments, environment)
        if root is not None:
            from gpushare_plugin.adapters.host.nvml import initialisation  # noqa: PLC0415 - a simulation needs no pynvml

            initialisation.begin(root)


def driver_root(arguments: Sequence[str], environment: Mapping[str, str]) -> Path | None:
    """Return the driver root that the daemon will use; None where that is uncertain, or where there will be no daemon.

    Raises OSError when a config cannot be read.
    """

    def given(option: str) -> Iterator[str]:
        """Yield every value of an option that has one, and of its variable."""
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            name, equals, value = argument.partition("=")
            if name == option:
                yield value if equals else following
        yield environment.get(option.removeprefix("--").replace("-", "_").upper(), "")

    if arguments[:1] != ["run"] or _NO_DAEMON & set(arguments) or any(given("--simulate")):
        return None
    roots = {root for option in _ROOT_OPTIONS for root in given(option) if root}
    if roots:
        return Path(roots.pop()) if len(roots) == 1 else None
    configs = [Path(file) for file in given("--config-file") if file]
    for directory in given("--config-directory"):
        configs += [file for file in Path(directory).iterdir() if file.is_file()] if directory else []
    if any(_ROOT_KEY in read_content(config) for config in configs):
        return None
    return Path(CONTAINER_DRIVER_ROOT)

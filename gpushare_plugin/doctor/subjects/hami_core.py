"""HAMi-core: whether the node has the library that the isolation `hami-core` preloads into programs of containers.

Facts, of Project-HAMi/HAMi, pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go: the two files, and their paths
in containers; `GetLibPath` of util.go there: from 2.5 on, the library on the node has HAMi's version in its name.
ld.so(8): a program starts without a library of `/etc/ld.so.preload` that is not there.
"""

from collections.abc import Iterator

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.doctor.node.diagnosis import Diagnosis, not_looked_at, right, wrong
from gpushare_plugin.doctor.node.host import HostRoot, UnreadableError
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.sharing.isolation.hami_core import LIBRARY_DIRECTORY

SUBJECT = "HAMi-core"
_LIBRARY, _PRELOAD = "libvgpu.so", "ld.so.preload"
_IN_CONTAINERS = f"{LIBRARY_DIRECTORY}/{_LIBRARY}"


class HamiCoreFacts(Struct, frozen=True):
    """What the node shows of HAMi-core."""

    library: bool = False
    """Whether the library is there."""
    versioned: tuple[str, ...] = ()
    """Libraries there with HAMi's version in the name."""
    preload: tuple[str, ...] | None = None
    """The libraries that the file for the preload names; None without the file."""
    failure: str = ""
    """Why that file cannot be read; empty without a problem."""


def read_hami_core(host: HostRoot, needs: ConfigNeeds) -> HamiCoreFacts:
    """Return what the node shows of HAMi-core in the directory of the config."""
    library = host.exists(f"{needs.hami_directory}/{_LIBRARY}")
    try:
        text = host.text(f"{needs.hami_directory}/{_PRELOAD}")
    except UnreadableError as error:
        return HamiCoreFacts(library, failure=str(error))
    versioned = host.names(needs.hami_directory, f"{_LIBRARY}.*")
    named = None if text is None else tuple(word for word in text.replace(":", " ").split() if word == _IN_CONTAINERS)
    return HamiCoreFacts(library, versioned, named)


def judge_hami_core(facts: HamiCoreFacts, needs: ConfigNeeds, *, needed: bool) -> Iterator[Diagnosis]:
    """Yield the line about HAMi-core; none unless it is `needed`: the config limits containers by it on this node."""
    if not needed:
        return
    place = needs.hami_directory
    lacking = [*([] if facts.library else [_LIBRARY]), *([_PRELOAD] if facts.preload is None else [])]
    install = (
        f"put HAMi's {_LIBRARY}, and an {_PRELOAD} with the line {_IN_CONTAINERS}, into {place} (docs/isolation.md, "
        "HAMi-core), name their directory as hamiCore.libraryDirectory, or take another isolation"
    )
    if lacking == [_LIBRARY] and facts.versioned:
        found = ", ".join(facts.versioned)
        install = f"copy the newest of HAMi's {found} in {place} to {_LIBRARY} there (docs/moving.md, HAMi)"
    if facts.failure:
        yield not_looked_at(SUBJECT, facts.failure)
    elif lacking:
        yield wrong(SUBJECT, f"{place} has no {' and no '.join(lacking)}, so {_WITHOUT}", install)
    elif not facts.preload:
        yield wrong(SUBJECT, f"{place}/{_PRELOAD} does not name {_IN_CONTAINERS}, so {_WITHOUT}", install)
    else:
        yield right(SUBJECT, f"{_LIBRARY} and {_PRELOAD} are in {place}")


_WITHOUT = "containers with a share fail to start, or run without a limit"

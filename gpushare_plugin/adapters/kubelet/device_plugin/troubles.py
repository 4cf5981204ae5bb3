"""Trouble between a resource and the kubelet: warned of where it lasts, and once."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

GRACE = 3.0
"""Seconds that trouble must last to be warned of: when a kubelet restarts, all is well again within a second."""

_Trouble = tuple[str, tuple[tuple[str, str], ...]]
"""An event of the log, and its facts."""


class Troubles:
    """Warns of each trouble that lasts longer than a grace period, once until all is well again.

    A restart of the kubelet needs no attention, and a long time without a kubelet must not fill the disk.
    """

    def __init__(
        self, warn: Callable[[str, Mapping[str, str]], None], is_well: Callable[[], bool], grace: float = GRACE
    ) -> None:
        """Call `warn` for what has lasted `grace` seconds; `is_well` returns whether everything is mended."""
        self._warn = warn
        self._is_well = is_well
        self._grace = grace
        self._noted: dict[_Trouble, None] = {}
        self._logged: set[_Trouble] = set()
        self._judgement: asyncio.TimerHandle | None = None

    @property
    def events(self) -> Sequence[str]:
        """The troubles of which it is not decided yet whether they last."""
        return tuple(event for event, _ in self._noted)

    def note(self, event: str, facts: Mapping[str, str]) -> None:
        """Warn of this, with its facts, if it lasts."""
        trouble = (event, tuple(facts.items()))
        if trouble in self._logged:
            return
        self._noted[trouble] = None
        if self._judgement is None:
            self._judge_later()

    def close(self) -> None:
        """Warn of nothing more."""
        if self._judgement is not None:
            self._judgement.cancel()

    def _judge_later(self) -> None:
        self._judgement = asyncio.get_running_loop().call_later(self._grace, self._judge)

    def _judge(self) -> None:
        """Warn of what has not been mended meanwhile; look again until all is well."""
        self._judgement = None
        if self._is_well():
            self._logged.clear()
        else:
            for event, facts in self._noted:
                self._warn(event, dict(facts))
            self._logged.update(self._noted)
            self._judge_later()
        self._noted.clear()

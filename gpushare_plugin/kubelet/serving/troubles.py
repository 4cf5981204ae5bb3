"""Warnings of trouble that lasts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

GRACE = 3.0
"""Seconds before a warning of trouble: after the restart of a kubelet, all is well again within a second."""

_Trouble = tuple[str, tuple[tuple[str, str], ...]]
"""An event of the log, with its facts."""


class Troubles:
    """Warns of trouble not mended at the end of a grace period, and repeats no warning until all is well again.

    The restart of a kubelet needs no attention. A long time without a kubelet must not fill the disk with warnings.
    """

    def __init__(
        self, warn: Callable[[str, Mapping[str, str]], None], is_well: Callable[[], bool], grace: float = GRACE
    ) -> None:
        """Call `warn` for the trouble of the last `grace` seconds, unless `is_well` returns that all is mended."""
        self._warn = warn
        self._is_well = is_well
        self._grace = grace
        self._noted: dict[_Trouble, None] = {}
        self._logged: set[_Trouble] = set()
        self._judgement: asyncio.TimerHandle | None = None

    @property
    def events(self) -> Sequence[str]:
        """The events of new trouble, not yet known to last."""
        return tuple(event for event, _ in self._noted)

    def note(self, event: str, facts: Mapping[str, str]) -> None:
        """Warn of the event, with its facts, if the trouble lasts."""
        trouble = (event, tuple(facts.items()))
        if trouble in self._logged:
            return
        self._noted[trouble] = None
        if self._judgement is None:
            self._judge_later()

    def close(self) -> None:
        """Stop warning."""
        if self._judgement is not None:
            self._judgement.cancel()

    def _judge_later(self) -> None:
        self._judgement = asyncio.get_running_loop().call_later(self._grace, self._judge)

    def _judge(self) -> None:
        """Warn of the trouble noted since the last look unless all is well; look again until all is well."""
        self._judgement = None
        if self._is_well():
            self._logged.clear()
        else:
            for event, facts in self._noted:
                self._warn(event, dict(facts))
            self._logged.update(self._noted)
            self._judge_later()
        self._noted.clear()

"""Whether the limit of a container is in effect: the states. The rules that find them are in `in_effect`."""

from collections.abc import Iterable, Sequence
from typing import Literal

from gpushare_plugin.base.structs import Struct

State = Literal["in effect", "in effect since", "not in effect", "unknown"]
"""Whether the limit of a container is in effect; `in effect since` for a limit that came after the container began."""

_GRAVITY: Sequence[State] = ("not in effect", "unknown", "in effect since", "in effect")
"""The states, the gravest first."""


def state_label(state: State) -> str:
    """Return a state as one word, for metrics: `in_effect`, `in_effect_since`, `not_in_effect` or `unknown`."""
    return state.replace(" ", "_")


class Effect(Struct, frozen=True):
    """Whether the limit of a container on a GPU is in effect."""

    state: State
    """The state."""
    reason: str = ""
    """Why the limit is not in effect, or what is missing to know that, for people; empty where it is in effect."""
    seconds: float | None = None
    """The seconds from the start of the container to the limit; None unless the limit came later."""

    @property
    def words(self) -> str:
        """The effect in words."""
        if self.seconds is not None:
            return f"{self.state} {self.seconds:.0f} s after the start of the container"
        return f"{self.state}: {self.reason}" if self.reason else self.state


IN_EFFECT = Effect("in effect")
"""The limit is in effect, for all that is known."""


def unknown(reason: str) -> Effect:
    """Return the effect of a limit of which something is missing to know more."""
    return Effect("unknown", reason)


def not_in_effect(reason: str) -> Effect:
    """Return the effect of a limit that is not enforced."""
    return Effect("not in effect", reason)


def worst(effects: Iterable[Effect]) -> Effect:
    """Return the gravest effect, the first of equals: a limit that one process escapes is not in effect."""
    return min(effects, key=lambda each: _GRAVITY.index(each.state))


def worst_state(states: Iterable[State]) -> State:
    """Return the gravest state."""
    return min(states, key=_GRAVITY.index)

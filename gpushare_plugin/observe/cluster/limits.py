"""Whether the limits of a pod are in effect, by the annotation of the node's daemon."""

from collections.abc import Iterator

from gpushare_plugin.core.effect import State
from gpushare_plugin.ledger.annotations import read_limits
from gpushare_plugin.observe.parts import Part


class ContainerLimit(Part, frozen=True, kw_only=True):
    """Whether the limit of a container on a GPU is in effect."""

    container: str
    """The name of the container; empty for all containers of the pod together."""
    gpu: str
    """The UUID of the GPU."""
    state: State
    """Whether the limit is in effect."""
    effect: str
    """The effect in words: the state, and the reason or the delay."""


def container_limits(annotation: str) -> Iterator[ContainerLimit]:
    """Yield what the value of `gpushare/limits` says; raises AnnotationError."""
    for container, gpus in read_limits(annotation).items():
        for gpu, effect in gpus.items():
            yield ContainerLimit(container=container, gpu=gpu, state=effect.state, effect=effect.words)

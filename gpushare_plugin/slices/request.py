"""The slices that the annotations of a Node request of its daemon, without requests that make no sense."""

from collections.abc import Mapping

from gpushare_plugin.base.structs import Struct, field
from gpushare_plugin.slices.slice import Kind
from gpushare_plugin.slices.wanted import Counts


class SliceRequest(Struct, frozen=True):
    """The slices of one kind that the annotations of a Node request."""

    gpus: Mapping[str, Counts] | None = field(default_factory=dict)
    """The requested slices, by the UUID of the GPU; a GPU without an entry keeps its slices.

    MIG instances are counted by place (`3g.20gb@4`), or by profile (`3g.20gb`) if people leave the place open.
    None stands for annotations that cannot be read: the slices requested before stay requested.
    """
    notices: tuple[str, ...] = ()
    """Warnings about the annotations, for people."""
    kind: Kind = "mps"
    """The kind of the slices."""

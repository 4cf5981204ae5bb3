"""What the annotations of a Node request of its daemon, as far as they make sense."""

from collections.abc import Mapping

from gpushare_plugin.foundation.structs import Struct, field
from gpushare_plugin.model.slices.slice import Kind
from gpushare_plugin.model.slices.wanted import Counts


class SliceRequest(Struct, frozen=True):
    """The slices of a kind that are wanted of GPUs, by UUID; a GPU that is not named stays as it is.

    MIG instances are counted by place, or by profile (`3g.20gb`) where people leave the place open.
    `gpus` is None where that cannot be read: then what was requested before stays. `notices` are for people.
    """

    gpus: Mapping[str, Counts] | None = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    kind: Kind = "mps"

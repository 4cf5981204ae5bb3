"""MIG profiles: what instances of a card can be like, and where on it."""

from gpushare_plugin.foundation.structs import Struct
from gpushare_plugin.model.unit import Amount


class MigProfile(Struct, frozen=True, gc=False):
    """A profile of MIG instances as the driver describes it for one card.

    `starts` are the memory slices at which an instance can begin, `size` the memory slices that it takes, `compute` its
    compute slices, `most` how many of it can be on the card at once. Its fields are those of the record of a node.
    """

    name: str
    starts: tuple[Amount, ...]
    size: Amount
    compute: Amount
    most: Amount

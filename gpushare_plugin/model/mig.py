"""MIG profiles: what instances of a card can be like, and where on it."""

from typing import Annotated

from gpushare_plugin.foundation.structs import Meta, Struct

Parts = Annotated[int, Meta(ge=0, le=255)]
"""A number of parts of a card that is read from a record: today's cards have 8 memory slices and 7 compute slices."""

MOST_PROFILES = 64
"""Profiles of a card that are believed: drivers know about twenty."""


class MigProfile(Struct, frozen=True, gc=False):
    """A profile of MIG instances as the driver describes it for one card.

    `starts` are the memory slices at which an instance can begin, `size` the memory slices that it takes, `compute` its
    compute slices, `most` how many of it can be on the card at once. Its fields are those of the record of a node; the
    limits hold where that is read, so that nothing large is built from it.
    """

    name: Annotated[str, Meta(max_length=64)]
    starts: Annotated[tuple[Parts, ...], Meta(max_length=16)]
    size: Parts
    compute: Parts
    most: Parts

"""What cards in MIG mode can be divided into, from `mig_profiles.yaml`, and where described instances are on them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.testing.nvml.node import FakeGpu, FakeMigInstance

_FILE = Path(__file__).with_name("mig_profiles.yaml")
_HALF, _QUARTER = 4, 2
"""Memory slices."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A GPU instance profile of a card, with the keys of the file; `memory` is in MiB."""

    id: int
    number: int
    slices: int
    memory: int
    count: int
    multiprocessors: int
    engines: tuple[int, int, int, int, int]
    size: int
    starts: tuple[int, ...]


def mig_profiles() -> Mapping[str, Mapping[str, MigProfile]]:
    """Return the profiles by card and name."""
    return _read()


@cache
def _read() -> Mapping[str, Mapping[str, MigProfile]]:
    cards: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(_FILE.read_text())
    return {
        card: {
            name: MigProfile(**{**keys, "engines": tuple(keys["engines"]), "starts": tuple(keys["starts"])})
            for name, keys in profiles.items()
        }
        for card, profiles in cards.items()
    }


def place(gpu: FakeGpu) -> tuple[FakeMigInstance, ...]:
    """Return the MIG instances of a card with their places, and with what follows from their profiles.

    Compute instances whose GPU instance has the same number share its place. Raises `ValueError` where the card cannot
    be divided like that.
    """
    if gpu.mig_profiles not in _read():
        raise ValueError(f"mig_profiles {gpu.mig_profiles!r}: expected one of {', '.join(_read())}")
    profiles = _read()[gpu.mig_profiles]
    placed: list[FakeMigInstance] = []
    for instance in gpu.mig_instances:
        name = instance.profile.partition("c.")[2] or instance.profile
        if (profile := profiles.get(name)) is None:
            raise ValueError(f"MIG profile {name!r}: a {gpu.mig_profiles} has {', '.join(profiles)}")
        placed.append(_placed(instance, profile, placed))
    return tuple(placed)


def _placed(instance: FakeMigInstance, profile: MigProfile, others: Sequence[FakeMigInstance]) -> FakeMigInstance:
    partner = next((each for each in others if each.gpu_instance == instance.gpu_instance is not None), None)
    start = partner.start if partner else next(_free(profile, others, instance.start), None)
    if start is None:
        raise ValueError(f"MIG profile {instance.profile!r}: no room is left for it among {list(profile.starts)}")
    taken = {each.gpu_instance for each in others}
    number = _number(start, profile.size)
    while number in taken:
        number += 1
    copy_engines, decoders, encoders, jpegs, ofas = profile.engines
    return replace(
        instance,
        start=start,
        size=profile.size,
        gpu_instance=number if instance.gpu_instance is None else instance.gpu_instance,
        memory_mib=profile.memory,
        copy_engines=copy_engines,
        decoders=decoders,
        encoders=encoders,
        jpegs=jpegs,
        ofas=ofas,
        profile_number=profile.number,
    )


def _free(profile: MigProfile, others: Sequence[FakeMigInstance], start: int | None) -> Iterator[int]:
    """Yield where an instance can begin, or `start` alone."""
    for first in profile.starts:
        if start in {None, first} and not any(
            first < (each.start or 0) + each.size and (each.start or 0) < first + profile.size for each in others
        ):
            yield first


def _number(start: int, size: int) -> int:
    """Return the number that the driver gives a GPU instance at a place, as `number_for` of the library."""
    if size > _HALF:
        return 0
    if size > _QUARTER:
        return 1 + start // _HALF
    return 3 + start // _QUARTER if size > 1 else 7 + start


def describe_profiles(card: str) -> Iterator[str]:
    """Yield a line of the description for each profile of a card; none where `card` is empty."""
    for name, profile in _read()[card].items() if card else ():
        numbers = (profile.number, profile.id, profile.slices, profile.count, profile.memory, profile.multiprocessors)
        yield f"mig_profile {name} {' '.join(map(str, (*numbers, *profile.engines, profile.size, *profile.starts)))}"

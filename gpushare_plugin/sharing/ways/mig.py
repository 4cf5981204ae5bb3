"""MIG: the GPUs that a node advertises under each strategy, cards or MIG instances, with their names before sharing.

Source: the strategies and the names for profiles in NVIDIA/k8s-device-plugin, internal/rm/device_map.go and rm.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from gpushare_plugin.base.structs import Struct
from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import ResourcePattern, Resources
from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.slices.slice import Slice

Strategy = Literal["none", "single", "mixed"]
"""How MIG instances are advertised: not at all, as whole GPUs, or by profile."""


class Offered(Struct, frozen=True):
    """The GPUs that a node can offer."""

    names: Mapping[Gpu, str]
    """The resource name of each GPU before sharing, in order of place."""
    problem: str | None = None
    """The reason why the strategy does not suit the GPUs, and no GPU is offered; None without a problem."""
    notices: tuple[str, ...] = ()
    """Warnings for people about cards in MIG mode without MIG instances."""


def offered(inventory: Inventory, strategy: Strategy, resources: Resources) -> Offered:
    """Return the GPUs of `inventory` to offer under `strategy`, with resource names by the patterns of `resources`."""
    cut = [gpu for gpu in inventory.cards if gpu.mig_enabled]
    if strategy == "none" or not cut:
        return Offered({gpu: _resource_name(gpu.name, resources.gpus, names.WHOLE_GPU) for gpu in inventory.cards})
    notices = tuple(_nothing_offered(inventory, cut))
    if strategy == "single":
        if not _alike(inventory):
            return Offered({}, _unlike(inventory))
        return Offered(
            {gpu: _resource_name(_profile(gpu), resources.migs, names.WHOLE_GPU) for gpu in inventory.gpus if gpu.mig},
            notices=notices,
        )
    return Offered(
        {
            gpu: _resource_name(_profile(gpu), resources.migs, Slice("mig", _profile(gpu)).resource)
            if gpu.mig
            else _resource_name(gpu.name, resources.gpus, names.WHOLE_GPU)
            for gpu in inventory.gpus
            if gpu.mig or not gpu.mig_enabled
        },
        notices=notices,
    )


def _resource_name(text: str, patterns: Sequence[ResourcePattern], otherwise: str) -> str:
    return next((pattern.name for pattern in patterns if pattern.matches(text)), otherwise)


def _profile(gpu: Gpu) -> str:
    return gpu.mig.profile if gpu.mig else ""


def _nothing_offered(inventory: Inventory, cut: Sequence[Gpu]) -> Iterator[str]:
    for gpu in cut:
        if not inventory.instances_of(gpu):
            yield f"{gpu.description} is in MIG mode without MIG instances: it is not advertised"


def _alike(inventory: Inventory) -> bool:
    """Return whether all cards are cut into instances of one profile; unresponsive instances count as alike."""
    unresponsive = {card.index for card in inventory.failed}
    every_card = all(
        gpu.mig_enabled and (inventory.instances_of(gpu) or gpu.index in unresponsive) for gpu in inventory.cards
    )
    return every_card and len({_profile(gpu) for gpu in inventory.instances}) <= 1


def _unlike(inventory: Inventory) -> str:
    each = "; ".join(f"{gpu.identity} {_layout(inventory, gpu)}" for gpu in inventory.cards)
    return (
        f'"single" found, which requires every GPU to be in MIG mode with instances of one profile, but {each}. '
        'Configure all GPUs alike, or set "mixed"'
    )


def _layout(inventory: Inventory, card: Gpu) -> str:
    profiles = [_profile(gpu) for gpu in inventory.instances_of(card)]
    if not card.mig_enabled:
        return "is not in MIG mode"
    if not profiles:
        return "has no MIG instance"
    return "has " + ", ".join(f"{profiles.count(profile)} x {profile}" for profile in dict.fromkeys(profiles))

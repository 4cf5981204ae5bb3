"""The snapshot of a node from the plan, with the needed settings of the config as plain values."""

from collections.abc import Iterator, Mapping

from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import Config, Resources, Sharing
from gpushare_plugin.config.unreported_memory import sized
from gpushare_plugin.core.driver_limits import LimitRule
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.sharing.isolation.driver import UnderDriver
from gpushare_plugin.sharing.isolation.layer import IsolatedMode, Mode
from gpushare_plugin.sharing.isolation.mps import UnderMps
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.slices.slice import Slice


def planned_snapshot(
    config: Config, inventory: Inventory, decided: Plan, modes_in_use: Mapping[str, Mode] | None = None
) -> Snapshot:
    """Return the snapshot of a node that offers all resources of the plan, without unhealthy or waiting GPUs.

    `modes_in_use` are the modes by which containers hold GPUs, by UUID of the GPU; None for the modes of the plan.
    """
    inventory = sized(inventory, config.unreported_memory)
    modes = decided.modes if modes_in_use is None else modes_in_use
    isolated = {uuid: mode for uuid, mode in modes.items() if isinstance(mode, IsolatedMode)}
    return Snapshot(
        inventory,
        decided.resources,
        under_mps=frozenset(decided.mps.gpus),
        isolations=decided.isolations,
        isolation_reasons=decided.isolation_reasons,
        isolations_in_use={uuid: mode.isolation for uuid, mode in isolated.items()},
        equal_shares_mib=dict(_equal_shares(isolated, inventory)),
        driver_limits=limit_rules(modes),
        by_claim=decided.by_claim,
        cdi_names=decided.cdi_names,
        notices=decided.notices,
        mig_strategy=config.flags.mig_strategy,
        policy=_named_policy(config.sharing),
        needs_mps=bool(inventory.cards or inventory.failed) and (config.sharing.mps is not None or decided.through_mps),
        unshared_names=frozenset(_unshared_names(config.resources, inventory)),
    )


def _equal_shares(isolated: Mapping[str, IsolatedMode], inventory: Inventory) -> Iterator[tuple[str, int]]:
    for gpu in inventory.gpus:
        mode = isolated.get(gpu.uuid)
        if mode is not None and (share := mode.equal_share_mib(gpu.memory_mib)):
            yield gpu.uuid, share


def _unshared_names(resources: Resources, inventory: Inventory) -> Iterator[str]:
    yield names.WHOLE_GPU
    yield from (pattern.name for pattern in (*resources.gpus, *resources.migs))
    yield from (Slice("mig", gpu.mig.profile).resource for gpu in inventory.instances if gpu.mig)


def _named_policy(sharing: Sharing) -> str | None:
    """Return the policy named by the entries of `sharing.memory`; None without a name, or with several names."""
    by_memory = sharing.memory.resources if sharing.memory else ()
    named = {resource.placement for resource in by_memory if "placement" in resource.model_fields_set}
    return named.pop() if len(named) == 1 else None


def limit_rules(modes: Mapping[str, Mode]) -> dict[str, LimitRule]:
    """Return the rules of the GPUs whose memory the driver limits, by UUID; `modes` are the modes of GPUs, by UUID."""
    by_driver = {uuid: mode.driver if isinstance(mode, UnderMps) else mode for uuid, mode in modes.items()}
    return {uuid: mode.rule for uuid, mode in by_driver.items() if isinstance(mode, UnderDriver)}

"""The snapshot of a node from the plan, with the needed settings of the config as plain values."""

from collections.abc import Iterator

from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import Config, Resources, Sharing
from gpushare_plugin.config.unreported_memory import sized
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.sharing.plan import Plan
from gpushare_plugin.slices.slice import Slice


def planned_snapshot(config: Config, inventory: Inventory, decided: Plan) -> Snapshot:
    """Return the snapshot of a node that offers all resources of the plan, without unhealthy or waiting GPUs."""
    inventory = sized(inventory, config.unreported_memory)
    return Snapshot(
        inventory,
        decided.resources,
        under_mps=frozenset(decided.mps.gpus),
        isolations=decided.isolations,
        cdi_names=decided.cdi_names,
        notices=decided.notices,
        mig_strategy=config.flags.mig_strategy,
        policy=_named_policy(config.sharing),
        needs_mps=bool(inventory.cards or inventory.failed) and _through_mps(config.sharing),
        unshared_names=frozenset(_unshared_names(config.resources, inventory)),
    )


def _unshared_names(resources: Resources, inventory: Inventory) -> Iterator[str]:
    yield names.WHOLE_GPU
    yield from (pattern.name for pattern in (*resources.gpus, *resources.migs))
    yield from (Slice("mig", gpu.mig.profile).resource for gpu in inventory.instances if gpu.mig)


def _named_policy(sharing: Sharing) -> str | None:
    """Return the policy named by the entries of `sharing.memory`; None without a name, or with several names."""
    by_memory = sharing.memory.resources if sharing.memory else ()
    named = {resource.placement for resource in by_memory if "placement" in resource.model_fields_set}
    return named.pop() if len(named) == 1 else None


def _through_mps(sharing: Sharing) -> bool:
    by_memory = sharing.memory.resources if sharing.memory else ()
    return sharing.mps is not None or any(resource.isolation == "mps" for resource in by_memory)

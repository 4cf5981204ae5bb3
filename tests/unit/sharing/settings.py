"""Settings for tests of the ways to share, given as a config file has them."""

from collections.abc import Iterable

from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.unit import Unit, parse_unit
from gpushare_plugin.sharing.cut import PresentUnits
from gpushare_plugin.sharing.plan import Plan, plan

GPU_MEM = "aliyun.com/gpu-mem"


def settings(**sections: object) -> Config:
    """Return the settings that a file with these sections has."""
    return Config.model_validate(sections)


def without_file() -> Config:
    """Return the settings of a node that has no config file."""
    config = load(None).config
    assert config is not None
    return config


def planned(inventory: Inventory, **sections: object) -> Plan:
    """Return what a node with these GPUs and settings would do."""
    return plan(EffectiveConfig(settings(**sections)), inventory)


def memory(**entry: object) -> dict[str, object]:
    """Return a `sharing` section with one memory entry."""
    return {"memory": {"resources": [{"name": GPU_MEM, **entry}]}}


def time_slicing(*entries: dict[str, object], **options: object) -> dict[str, object]:
    """Return a `sharing` section with these time-slicing entries."""
    return {"timeSlicing": {"resources": list(entries), **options}}


def only(decided: Plan) -> Resource:
    """Return the one resource of a plan without problems."""
    assert decided.problems == ()
    (resource,) = decided.resources
    return resource


def units_by_gpu(resource: Resource, ids: list[str]) -> dict[int, int]:
    """Return how many of `ids` sit on each GPU, by index."""
    counts: dict[int, int] = {}
    for id_ in ids:
        index = resource.gpus[resource.units[id_].gpu].index
        counts[index] = counts.get(index, 0) + 1
    return counts


def present(
    node: Inventory,
    offered: Iterable[str] = (),
    retired: Iterable[str] = (),
    held: Iterable[str] = (),
    *,
    asked_at: float | None = 0.0,
) -> PresentUnits:
    """Return the units that a node has, given their IDs."""

    def units(ids: Iterable[str]) -> dict[str, Unit]:
        return {id_: unit for id_ in ids if (unit := parse_unit(id_, node.numa_nodes)) is not None}

    return PresentUnits(units(offered), units(retired), units(held), asked_at)

"""Tests that what containers can get is known everywhere: each way of sharing has its cases, and each case its words.

The cases are those of `generators/isolation_table.py`, some of which `docs/isolation.md` shows. So a section of
`sharing` or an isolation that is added without a case, or with one that is not known everywhere, makes a test fail.
"""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from generators.isolation_table import CASES, Case
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.config.schema.fields import Kind
from gpushare_plugin.config.schema.sections import Section, Sharing
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.core.snapshot import SharingMode, Snapshot
from gpushare_plugin.core.unit import parse_unit
from gpushare_plugin.kube.own_node.labels import node_labels
from gpushare_plugin.ledger.annotations import pod_request
from gpushare_plugin.ledger.node import GPU_CORES, GPU_MEMORY, OfferedResource, recorded_node
from gpushare_plugin.ledger.node_record import decode, encode, record, resource_record
from gpushare_plugin.ledger.request import ContainerRequest
from gpushare_plugin.observe.cluster.report import unit_name
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from tests.nodes import a_node
from tests.unit.ledger.objects import account
from tests.unit.sharing.settings import settings

ROOT = Path(__file__).parents[2]
PLACE = "add a case to CASES in generators/isolation_table.py, then make generate"


def entries(case: Case) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of a case by their place, such as `memory.resources`."""
    ways: dict[str, dict[str, Any]] = yaml.safe_load(case.sharing)
    return {
        f"{way}.{key}": value for way, keys in ways.items() for key, value in keys.items() if isinstance(value, list)
    }


def lists() -> dict[str, type[Section]]:
    """Return the class of the entries of each list of `sharing`, by its place."""
    return {
        f"{way.alias}.{key.alias}": get_args(key.annotation)[0]
        for way in Sharing.model_fields.values()
        for section in get_args(way.annotation)
        if isinstance(section, type) and issubclass(section, Section)
        for key in section.model_fields.values()
        if get_args(key.annotation)[1:] == (...,)
    }


def made(case: Case) -> Snapshot:
    """Return a node that is shared as a case says."""
    config, inventory = settings(sharing=yaml.safe_load(case.sharing)), replace(a_node(40960), driver_version="570.1.2")
    decided = plan(EffectiveConfig(config), inventory, driver_limits=DriverLimits(agent=True))
    assert decided.problems == ()
    return planned_snapshot(config, inventory, decided)


def resources() -> list[Resource]:
    """Return all resources of all cases."""
    return [resource for case in CASES for resource in made(case).resources]


def kinds() -> dict[str, OfferedResource]:
    """Return a resource of each kind of units that schedulers are told of."""
    records = filter(None, map(resource_record, resources()))
    return {each.kind: OfferedResource(each.name, each.kind, (), 1024, each.policy) for each in records}


def test_every_list_of_sharing_has_a_case() -> None:
    """What can be configured is shown, with what containers get of it, and is what a way of sharing reads."""
    shown = {place for case in CASES for place in entries(case)}
    assert sorted(lists().keys() - shown) == [], PLACE


@pytest.mark.parametrize("place", [place for place, entry in lists().items() if "isolation" in entry.model_fields])
def test_every_isolation_has_a_case_in_each_list(place: str) -> None:
    """People see what containers get of each isolation, wherever it can be configured."""
    field = lists()[place].model_fields["isolation"]
    names = Kind.of(field.annotation, tuple(field.metadata)).item
    assert names is not None
    shown = {entry.get("isolation", names.words[0]) for case in CASES for entry in entries(case).get(place, ())}
    assert [name for name in names.words if name not in shown] == [], PLACE


@pytest.mark.parametrize("way", [each.alias for each in Sharing.model_fields.values()])
def test_a_way_without_entries_is_a_mistake(way: str, tmp_path: Path) -> None:
    """A key without the section below it is told, and not ignored: `_reject_nothing` of `Sharing` has each way."""
    (tmp_path / "config.yaml").write_text(f"version: v1\nsharing:\n  {way}:\n")
    problems = load(tmp_path / "config.yaml", []).problems
    assert [each.message.partition(";")[0] for each in problems] == ["found nothing"], "_reject_nothing in sections.py"


def test_the_kubelet_can_give_every_unit_back() -> None:
    """The ID of a unit says again, after a restart, which unit it is: each kind has its pattern in `core/unit.py`."""
    lost = [
        unit.id
        for resource in resources()
        for unit in (next(iter(resource.units.values())),)
        if parse_unit(unit.id, {unit.gpu: unit.numa_node}) != unit
    ]
    assert lost == [], "_FORMS in core/unit.py has no pattern for them, or not theirs"


def test_schedulers_are_told_of_every_resource() -> None:
    """The record of a node has each resource; one with a chooser without a kind would be unknown to the extender."""
    untold = {type(resource.chooser).__name__ for resource in resources() if resource_record(resource) is None}
    assert untold == set(), "resource_record in ledger/node_record.py has no kind for these choosers"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.sharing}, {case.resource}")
def test_the_extender_places_a_pod_of_every_case(case: Case) -> None:
    """From the record alone a GPU is found for what a case requests, whichever kind of units it is."""
    node = recorded_node("node", decode(encode(record(made(case)))))
    amounts = {case.resource: case.count} | ({GPU_MEMORY: 1} if case.resource == GPU_CORES else {})
    asked = pod_request([ContainerRequest("main", "app", tuple(amounts.items()))], {}, {})
    placed = {share.resource: share.units for share in account(node).place(asked, "node").shares}
    assert placed == amounts, "OfferedResource.chooser in ledger/node.py, or ledger/gpu_search.py"


def test_every_kind_of_units_has_a_name() -> None:
    """`gpushare inspect` says what is counted, and of what a table is, in words."""
    nameless = [kind for kind, offer in kinds().items() if unit_name(offer) == "units"]
    assert nameless == [], "_NAMES in observe/cluster/report.py"


def test_the_format_of_the_record_names_every_kind() -> None:
    """Whoever writes a scheduler learns each kind from `docs/cluster.md`."""
    (row,) = re.findall(r"^\| `resources` \| how the node.*$", (ROOT / "docs/cluster.md").read_text(), re.MULTILINE)
    assert [kind for kind in kinds() if f"`{kind}`" not in row] == []


def test_every_mode_is_that_of_a_case() -> None:
    """A mode that is written for people is what a node with such GPUs says: `Snapshot.mode` returns each."""
    said = {snapshot.mode(gpu) for snapshot in map(made, CASES) for gpu in snapshot.inventory.gpus}
    assert said == set(get_args(SharingMode)), "Snapshot.mode in core/snapshot.py, or CASES in isolation_table.py"


@pytest.mark.parametrize("mode", get_args(SharingMode))
def test_every_mode_has_its_label(mode: SharingMode) -> None:
    """A node whose GPUs are shared says so in NVIDIA's label."""
    nodes = [each for each in map(made, CASES) if {each.mode(gpu) for gpu in each.inventory.gpus} == {mode}]
    unlabelled = [each for each in nodes if "nvidia.com/gpu.sharing-strategy" not in node_labels(each)]
    assert unlabelled == [], f"_STRATEGIES in kube/own_node/labels.py has no {mode}"


@pytest.mark.parametrize("place", lists())
def test_a_name_is_advertised_by_one_list_alone(place: str, tmp_path: Path) -> None:
    """The name of a resource of each list of `sharing` may not be that of another entry, and the file alone says so."""
    case = next(each for each in CASES if place in entries(each) and each.resource != GPU_CORES)
    sharing = yaml.safe_load(case.sharing)
    renamed = {"name": "gpu", "rename": case.resource, "replicas": 2}
    another = "memory" if "memory" not in sharing else "timeSlicing"
    entry = {"name": case.resource} if another == "memory" else renamed
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"version": "v1", "sharing": sharing | {another: {"resources": [entry]}}})
    )
    problems = [each.message for each in load(tmp_path / "config.yaml", []).problems]
    assert any(f'found "{case.resource}", already used at' in each for each in problems), (
        f"_advertised in config/loading/mistakes.py has no names of {place}: {problems}"
    )

"""The inputs are what comes from outside, and are the same wherever they are made."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.gpus.simulated import SimulatedSource
from gpushare_plugin.ledger.node_record import encode, record
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.sharing.snapshot import planned_snapshot
from gpushare_plugin.slices.mig import MigProfile, MigRoom
from tests.verdicts import generate
from tests.verdicts.deciders.host import effective
from tests.verdicts.generate.draw import Draw
from tests.verdicts.generate.nodes import WAYS, recorded
from tests.verdicts.generate.partitioned import A100, situation

Json = dict[str, Any]

_CARDS = [{"memory": "40GiB", "count": 2, "numaNode": 0}, {"memory": "40GiB", "mig": ["3g.20gb", "1g.5gb"]}]
_CONFIGS: Sequence[Json] = (
    {
        "flags": {"migStrategy": "mixed"},
        "sharing": {"memory": {"resources": [{"name": "aliyun.com/gpu-mem", "devices": [0], "placement": "spread"}]}},
    },
    {
        "sharing": {
            "memory": {
                "resources": [
                    {"name": "aliyun.com/gpu-mem", "devices": [0, 1], "isolation": "mps", "compute": "requested"}
                ]
            }
        }
    },
    {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4, "devices": [0, 1]}]}}},
    {"sharing": {"mps": {"sizes": [{"devices": [0, 1], "slices": [{"size": "10gb", "count": 2}]}]}}},
)
"""How daemons share these cards; what no config names is whole."""


def _published(tmp_path: Path) -> Iterator[Json]:
    """Yield records that daemons on simulated GPUs publish."""
    file = tmp_path / "gpus.yaml"
    file.write_text(yaml.safe_dump({"gpus": _CARDS}))
    inventory = SimulatedSource(file).read()
    for sections in _CONFIGS:
        yield _written(inventory, sections)
    unhealthy = {inventory.cards[0].uuid: "XID 79"}
    yield _written(inventory, _CONFIGS[0], unhealthy=unhealthy, notices=("a warning",), policy="spread")
    few = {inventory.cards[0].uuid: 16}
    unsuitable = {inventory.cards[1].uuid: "too old"}
    yield _written(inventory, _CONFIGS[3], partitioning="mps", most_slices=few, unsuitable=unsuitable)
    cut = tuple(
        replace(each, mig=replace(each.mig, start=4 * number))
        for number, each in enumerate(inventory.instances)
        if each.mig
    )
    profiles = [MigProfile(name, *each) for name, each in A100.profiles.items()]
    rooms = {inventory.cards[2].uuid: MigRoom.of(profiles)}
    yield _written(replace(inventory, instances=cut), _CONFIGS[0], partitioning="mig", mig_rooms=rooms)


def _written(inventory: Inventory, sections: Json, **changes: Any) -> Json:
    config = effective(sections)
    decided = plan(config, inventory)
    assert not decided.problems
    snapshot: Snapshot = replace(planned_snapshot(config.config, inventory, decided), **changes)
    found: Json = json.loads(encode(record(snapshot)))
    del found["gpushare"]  # the version of the daemon, which people read and no verdict
    return found


def _generated() -> Iterator[Json]:
    """Yield records that nobody has damaged."""
    for number in range(150):
        for way in WAYS:
            annotations = recorded(Draw("record", way, number), number, [way]).node["metadata"]["annotations"]
            yield from _read(annotations)
        for node in situation(Draw("record", number))["nodes"]:
            yield from _read(node["metadata"]["annotations"])


def _read(annotations: Mapping[str, str]) -> Iterator[Json]:
    try:
        found = json.loads(annotations["gpushare/gpus"])
    except (KeyError, ValueError):
        return
    # Damaged ones are told by what no daemon writes.
    if (
        isinstance(found, dict)
        and found.get("version") == 1
        and "later" not in found
        and "memoryMiB" in found["gpus"][0]
    ):
        yield found


def _forms(records: Iterator[Json]) -> tuple[set[tuple[str, str]], dict[str, set[frozenset[str]]]]:
    """Return each key with the type of its value, and the keys that the records of a mode always or sometimes have."""
    keys: set[tuple[str, str]] = set()
    modes: dict[str, set[frozenset[str]]] = {}
    for each in records:
        keys |= {(key, type(value).__name__) for key, value in each.items()}
        for part in ("gpus", "resources"):
            keys |= {(f"{part}.{key}", type(value).__name__) for one in each[part] for key, value in one.items()}
        for gpu in each["gpus"]:
            keys |= {(f"profiles.{key}", type(v).__name__) for one in gpu.get("profiles", ()) for key, v in one.items()}
            modes.setdefault(gpu.get("mode", ""), set()).add(frozenset(gpu))
    return keys, modes


def test_a_record_has_the_keys_that_a_daemon_publishes(tmp_path: Path) -> None:
    """Each key of an input is one that a daemon on simulated GPUs writes, with the same type, and vice versa.

    What such a daemon writes of every GPU in a mode, each GPU of an input in that mode has, too.
    """
    published, of_daemons = _forms(_published(tmp_path))
    generated, of_inputs = _forms(_generated())
    assert generated == published
    for mode, found in of_inputs.items():
        always = frozenset[str].intersection(*of_daemons[mode])
        assert always - {"numaNode"} <= frozenset[str].intersection(*found), mode


def test_generated_inputs_do_not_depend_on_the_product() -> None:
    """So a change of the product cannot change an input."""
    for file in Path(generate.__path__[0]).glob("*.py"):
        for found in ast.walk(ast.parse(file.read_text())):
            names = [each.name for each in found.names] if isinstance(found, ast.Import) else []
            names += [found.module or ""] if isinstance(found, ast.ImportFrom) else []
            ours = [name for name in names if name.startswith(("gpushare_plugin", "tests"))]
            assert all(name.startswith("tests.verdicts.generate") for name in ours), file


_HASHES = """
import json
from tests.verdicts.cases import KINDS, Case, verdict
found = [verdict(Case(kind, 7, number)) for kind in KINDS for number in range(12)]
print(json.dumps(found, sort_keys=True))
"""


def test_no_verdict_depends_on_the_process() -> None:
    """Python hashes texts differently in each process, which gives sets another order."""
    found = []
    for seed in ("0", "1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        told = subprocess.run(
            [sys.executable, "-c", _HASHES], capture_output=True, text=True, check=True, env=environment
        )
        found.append(told.stdout)
    assert found[0] == found[1] == found[2]

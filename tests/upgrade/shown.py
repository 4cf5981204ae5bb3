"""What commands of one build show of the programs of another one."""

import json
from collections import Counter
from typing import Any

from tests.process.daemon import Argument, gpushare
from tests.upgrade.builds import Build
from tests.upgrade.memory import MEMORY, Held, Life
from tests.upgrade.worker import Worker

USUAL = "gpushare: the extender does not verify who asks it"


async def shown(build: Build, *arguments: Argument, of: Build | None = None) -> Any:
    """Return the JSON that a command of a build prints, which complains of nothing but how these tests run extenders.

    What it says is `of` another build where it asked a program of that.
    """
    done = await gpushare(*arguments, "-o", "json", environment=build.environment)
    complaints = [line for line in done.errors.splitlines() if not line.startswith(USUAL)]
    assert (done.status, complaints) == (0, []), done
    found = json.loads(done.output)
    assert found["gpushare"] == (of or build).version, found
    return found


async def check_shown(life: Life, build: Build) -> None:
    """See that `inspect`, `explain` and `list` of a build show what pods hold, and why one waits."""
    held = life.held()
    assert held
    assert await inspected(life, build) == held
    listed = [await listed_by(worker, build) for worker in life.cluster.workers.values()]
    assert {name: units for each in listed for name, units in each.items()} == held
    running, waiting = next(iter(held)), life.cluster.create({MEMORY: 17})["metadata"]["name"]
    cluster = ("-n", "default", "--kubeconfig", life.kubeconfig)
    placed = await shown(build, "explain", running, *cluster)
    (granted,) = placed["granted"]
    assert (granted["gpus"], granted["source"], granted["drift"]) == (held[running], "allocation", False), granted
    assert placed["policyAssumed"] is None, placed
    explained = await shown(build, "explain", waiting, *cluster)
    assert explained["extenderProblem"] is None, explained
    assert {node["node"] for node in explained["nodes"] if node["missing"] > 0} == life.cluster.workers.keys(), (
        explained
    )


async def inspected(life: Life, build: Build) -> Held:
    """Return which pods have what of which GPU, as `inspect` shows it, by what the daemons wrote."""
    found: dict[str, Counter[str]] = {}
    for node in (await shown(build, "inspect", "--kubeconfig", life.kubeconfig))["nodes"]:
        for gpu in (gpu for resource in node["resources"] for gpu in resource["gpus"]):
            for pod in gpu["pods"]:
                assert (pod["state"], pod["drift"]) == ("allocated", False)
                found.setdefault(pod["pod"], Counter())[gpu["uuid"]] += pod["units"]
    return {name: dict(units) for name, units in found.items()}


async def listed_by(worker: Worker, build: Build) -> Held:
    """Return which pods have what of which GPU of a node, as its daemon tells `list`."""
    told = await shown(build, "list", "--device-plugin-path", worker.kubelet.plugin_directory, of=worker.daemon.build)
    assert (told["source"], told["problems"]) == ("daemon", [])
    found: dict[str, Counter[str]] = {}
    for gpu in told["gpus"]:
        for use in gpu["uses"]:
            found.setdefault(use["pod"], Counter())[gpu["uuid"]] += use["units"]
    return {name: dict(units) for name, units in found.items()}

"""What commands of one build show of the programs of another one."""

import json
from collections import Counter
from typing import Any

from tests.process.daemon import Argument, gpushare
from tests.upgrade.builds import Build
from tests.upgrade.memory import MEMORY, Held, Life
from tests.upgrade.partitioned import SLICE, SlicesLife
from tests.upgrade.worker import Worker
from tests.waiting import until

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


async def check_slices_shown(life: SlicesLife, *builds: Build) -> None:
    """See that `inspect` of builds shows which slices pods hold, and are wanted, and `explain` why a pod waits."""
    running = {pod["metadata"]["name"] for pod in life.cluster.pods if pod["status"]["phase"] == "Running"}
    assert running
    await until(lambda: running <= told_by_daemons(life), life.state)
    held = Counter((worker.name, resource) for worker in life.workers.values() for _, resource, _ in worker.ids())
    for build in builds:
        nodes = (await shown(build, "inspect", "--kubeconfig", life.kubeconfig))["nodes"]
        assert {node["name"]: node["partitioning"] for node in nodes} == {
            worker.name: worker.by for worker in life.workers.values()
        }
        slices = [(node["name"], each) for node in nodes for each in node["slices"]]
        counted: Counter[tuple[str, str]] = Counter()
        for name, each in slices:
            assert each["wanted"] >= each["held"], nodes
            counted[name, each["resource"]] += each["held"]
        assert +counted == held, nodes
    waiting = life.cluster.create({SLICE.format(48): 1})["metadata"]["name"]
    for build in builds:
        explained = await shown(build, "explain", waiting, "-n", "default", "--kubeconfig", life.kubeconfig)
        (said,) = explained["slices"]
        assert said.startswith(f"{SLICE.format(48)} is larger than any partitioned GPU: 48 GiB requested"), explained


async def check_kept_shown(life: SlicesLife, *builds: Build) -> None:
    """See that `inspect` of builds shows a slice that is kept for a pod until kube-scheduler binds that."""
    for pod in life.cluster.pods:
        life.cluster.delete(pod)
    await until(lambda: not life.cluster.pods)
    life.cluster.places_pods = False
    name = life.cluster.create({SLICE.format(24): 1})["metadata"]["name"]
    await until(lambda: [each for each in life.events("SliceBeingMade") if each["involvedObject"]["name"] == name])
    for build in builds:
        (waiting,) = (await shown(build, "inspect", "--kubeconfig", life.kubeconfig))["waiting"]
        assert (waiting["pod"], waiting["node"], len(waiting["gpus"])) == (name, "node-mps", 1), waiting
    life.cluster.places_pods = True


def told_by_daemons(life: SlicesLife) -> set[str]:
    """Return the names of the pods of which a daemon has written what they hold."""
    return {
        pod["metadata"]["name"]
        for pod in life.cluster.pods
        if "gpushare/allocation" in (pod["metadata"].get("annotations") or {})
    }

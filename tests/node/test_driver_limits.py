"""Tests of a node whose driver limits memory: what containers get, and what follows when the means come and go."""

from pathlib import Path

import pytest

from gpushare_plugin.base.errors import ConfigError
from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.driver_limits import DriverLimits, LimitRule
from gpushare_plugin.driver_limits.exchange import DriverLimitsRoot, LimitOrder
from gpushare_plugin.gpus.exchange import read_message
from gpushare_plugin.observe.metrics.node import View
from gpushare_plugin.observe.node.report import report
from gpushare_plugin.observe.node.tables import remarks
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from tests.logs import logged
from tests.node.living import living
from tests.nodes import Cards, a_gpu, a_node
from tests.unit.sharing.settings import GPU_MEM, memory
from tests.waiting import until

FIRST = a_gpu(0).uuid
OLD = DriverLimits(missing="NVIDIA's driver 580.95.05 limits no memory, which drivers from 615 on do")
LISTED = memory(isolation=["driver", "none"])


def cards(means: DriverLimits) -> Cards:
    """Return a GPU on a host with these means."""
    return Cards(replace(a_node(8192), driver_limits=means))


def a_pod(name: str, units: int = 2) -> Pod:
    """Return a pod with units of memory."""
    return Pod(name, [Container("main", {GPU_MEM: units})])


async def limits(kubelet: EmbeddedKubelet, pod: Pod) -> dict[str, str]:
    """Return the limits of the driver that the container of a new pod gets."""
    admitted = await kubelet.admit(pod)
    given = admitted.containers["main"].environment
    return {key: value for key, value in given.items() if key.startswith("NVIDIA_GPU_MEMORY_")}


async def test_a_container_gets_the_limits_of_its_share(kubelet: EmbeddedKubelet) -> None:
    """The hook of NVIDIA's toolkit finds both limits in the environment; the snapshot has the rule of the GPU."""
    async with living(kubelet, cards(DriverLimits()), sharing=memory(isolation="driver")) as life:
        await life.healthy({GPU_MEM: 8})
        given = await limits(kubelet, a_pod("pod", 3))
        assert given == {"NVIDIA_GPU_MEMORY_REQUEST": "0", "NVIDIA_GPU_MEMORY_LIMIT": "3072"}
        snapshot = life.node.snapshot.value
        assert (snapshot.isolations, snapshot.driver_limits) == ({FIRST: "driver"}, {FIRST: LimitRule()})


async def test_no_pod_is_promised_limits_that_nothing_sets(kubelet: EmbeddedKubelet) -> None:
    """The daemon does not start with such a config, and says why."""
    with pytest.raises(ConfigError, match=r"isolation: found driver, but NVIDIA's driver 580\.95\.05 limits no memory"):
        async with living(kubelet, cards(OLD), sharing=memory(isolation="driver")):
            pass


async def test_a_running_daemon_keeps_its_config_where_another_one_cannot_be_served(kubelet: EmbeddedKubelet) -> None:
    """The warning has the reason."""
    async with living(kubelet, cards(OLD), sharing=memory()) as life:
        await life.healthy({GPU_MEM: 8})
        await life.reload(sharing=memory(isolation="driver"))
        (notice,) = life.node.snapshot.value.notices
        assert notice.startswith("configuration rejected: ")
        assert OLD.missing in notice
        assert life.node.snapshot.value.isolations == {FIRST: "none"}


async def test_the_next_isolation_of_the_list_follows_when_the_host_changes(kubelet: EmbeddedKubelet) -> None:
    """A GPU that pods hold waits, so that containers with and without limits are never side by side."""
    gpus = cards(DriverLimits())
    async with living(kubelet, gpus, sharing=LISTED) as life:
        await life.healthy({GPU_MEM: 8})
        limited = a_pod("limited")
        assert await limits(kubelet, limited) != {}
        gpus.inventory = replace(gpus.inventory, driver_limits=OLD)
        await until(lambda: life.node.snapshot.value.isolations == {FIRST: "none"})
        snapshot = life.node.snapshot.value
        assert snapshot.isolation_reasons == {FIRST: (f"driver: {OLD.missing}",)}
        assert snapshot.driver_limits == {FIRST: LimitRule()}, "the pod that holds the GPU still has its limit"
        assert snapshot.waiting.keys() == {FIRST}
        shown = "\n".join(remarks(report(snapshot, "daemon")))
        assert f"GPU 0: isolation none once it no longer waits, not driver: {OLD.missing}" in shown
        assert snapshot.unlimited == {}, "the GPU waits, and no pod is promised a limit"
        await life.healthy({})
        kubelet.delete(limited)
        await life.healthy({GPU_MEM: 8})
        assert life.node.snapshot.value.driver_limits == {}
        assert await limits(kubelet, a_pod("free")) == {}


async def test_a_node_without_the_first_isolation_of_the_list_says_so(kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
    """The log, the metric and the agent have the reason at the start; a look at the same GPUs says nothing again."""
    root = DriverLimitsRoot(tmp_path / "driver-limits")
    with logged() as told:
        async with living(kubelet, cards(OLD), limits_root=root.path, sharing=LISTED) as life:
            await life.healthy({GPU_MEM: 8})
            await life.node.look()
            (line,) = (each for each in told if each["event"] == "gpu_isolation_not_first")
            assert (line["log_level"], line["uuid"], line["isolation"], line["expected"]) == (
                "warning",
                FIRST,
                "none",
                "driver",
            )
            assert line["reason"] == f"isolation none, not driver: {OLD.missing}"
            seen = list(View(life.node.snapshot.value).isolations)
            assert seen == [(("0", FIRST, "none", "driver"), False)]
            assert read_message(root.wanted, LimitOrder) == LimitOrder(missing=OLD.missing)


async def test_each_change_to_an_isolation_that_is_not_the_first_is_told(kubelet: EmbeddedKubelet) -> None:
    """The change back is not; the metric follows both."""
    gpus = cards(DriverLimits())
    with logged() as told:
        async with living(kubelet, gpus, sharing=LISTED) as life:
            for count in (1, 2):
                assert list(View(life.node.snapshot.value).isolations) == [(("0", FIRST, "driver", "driver"), True)]
                gpus.inventory = replace(gpus.inventory, driver_limits=OLD)
                await until(lambda: life.node.snapshot.value.isolations == {FIRST: "none"})
                assert sum(each["event"] == "gpu_isolation_not_first" for each in told) == count
                gpus.inventory = replace(gpus.inventory, driver_limits=DriverLimits())
                await until(lambda: life.node.snapshot.value.isolations == {FIRST: "driver"})


@pytest.mark.parametrize("means", [OLD, DriverLimits(hook="no hook is in the CDI specification of GPU 0")])
async def test_no_pod_gets_a_gpu_after_the_host_has_lost_the_means_to_limit(
    kubelet: EmbeddedKubelet, means: DriverLimits
) -> None:
    """An older driver, or a CDI specification without the hook: the log says which, and what to do.

    Pods keep their units, and the GPU can be allocated again once the means are back.
    """
    gpus, lost = cards(DriverLimits()), means.missing or means.hook
    with logged() as told:
        async with living(kubelet, gpus, sharing=memory(isolation="driver")) as life:
            await life.healthy({GPU_MEM: 8})
            holder = a_pod("holder")
            await kubelet.admit(holder)
            gpus.inventory = replace(gpus.inventory, driver_limits=means)
            await life.healthy({})
            await until(lambda: any(lost in str(each.get("problem")) for each in told))
            (reason,) = (each["reason"] for each in told if each["event"] == "gpu_not_limited")
            assert reason.startswith(f"no driver limits can be set: {lost}")
            assert reason.endswith(
                f"; {means.remedy}, or let another isolation follow in the config, as in [driver, none]"
            )
            snapshot = life.node.snapshot.value
            assert (snapshot.isolations, snapshot.unlimited) == ({FIRST: "driver"}, {FIRST: reason})
            assert snapshot.causes(a_gpu(0)) == {"limits"}
            gpus.inventory = replace(gpus.inventory, driver_limits=DriverLimits())
            await life.healthy({GPU_MEM: 8})
            assert any(each["event"] == "gpu_limited" for each in told)

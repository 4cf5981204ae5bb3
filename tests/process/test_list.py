"""`gpushare list`, run by hand in the daemon's pod: it shows what the daemon shares, whichever config that is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpushare_plugin.testing.cluster import ApiServer, granted
from tests.chart.rendering import objects
from tests.process.daemon import gpushare
from tests.unit.adapters.cluster.cluster import NODE, a_node, label

GPUS = "gpus:\n- {name: NVIDIA A10, memory: 24GiB, count: 2}\n"
TURNS = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MEMORY = "version: v1\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}\n"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """Run an API server that knows the daemon by the chart's rules."""
    async with ApiServer(granted(objects(), "gpushare")) as started:
        a_node(started)
        yield started


async def listed(server: ApiServer, folder: Path) -> tuple[str, str]:
    """Return what `gpushare list` prints with the environment of the chart's pod, and its complaints."""
    configs = folder / "configs"
    configs.mkdir()
    (configs / "default").write_text(MEMORY)
    (configs / "turns").write_text(TURNS)
    (folder / "gpus.yaml").write_text(GPUS)
    environment = {
        "NODE_NAME": NODE,
        "KUBECONFIG": str(server.kubeconfig(folder / "kubeconfig")),
        "SIMULATE": str(folder / "gpus.yaml"),
        "CONFIG_DIRECTORY": str(configs),
    }
    done = await gpushare("list", environment=environment)
    assert done.status == 0, done.errors
    return done.output, done.errors


@pytest.mark.parametrize(("name", "resource"), [(None, "aliyun.com/gpu-mem"), ("turns", "nvidia.com/gpu")])
async def test_the_label_of_the_node_counts(
    server: ApiServer, short_path: Path, name: str | None, resource: str
) -> None:
    """The resources are those of the config that the node's label chooses, or of the default one."""
    label(server, "nvidia.com/device-plugin.config", name)
    output, errors = await listed(server, short_path)
    assert output.count(resource) == 2
    assert "labels" not in errors


async def test_labels_that_cannot_be_read_are_told(server: ApiServer, short_path: Path) -> None:
    """Without the right to read the node, the default config is shown, and that the label is not known."""
    server.permissions = frozenset()
    output, errors = await listed(server, short_path)
    assert output.count("aliyun.com/gpu-mem") == 2
    assert "cannot read the labels of the Node" in errors

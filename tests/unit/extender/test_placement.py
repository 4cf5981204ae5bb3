"""Who decides on the placement policy: the pod, the label of the node, the config of the node, the cluster."""

import pytest

from gpushare_plugin.kube.client import NODES
from gpushare_plugin.testing.cluster import ApiServer
from tests.unit.extender.extenders import Asking, a_pod, gpu_of, node


@pytest.mark.parametrize(
    ("config", "label", "wish", "spread"),
    [
        (None, None, None, False),
        ("spread", None, None, True),
        ("spread", "binpack", None, False),
        ("spread", None, "binpack", False),
        ("binpack", "spread", None, True),
        ("fullest", None, None, False),
    ],
)
async def test_the_placement_of_a_nodes_config_is_obeyed(  # noqa: PLR0913 - who can name a policy
    server: ApiServer, asking: Asking, config: str | None, label: str | None, wish: str | None, *, spread: bool
) -> None:
    """After the annotation of the pod and the label of the node; a policy that nobody knows is none."""
    small = node("small", 10, 10, policy=config)
    if label is not None:
        small["metadata"]["labels"] = {"ack.node.gpu.placement": label}
    server.store.create(NODES, small)
    await asking.knows("small")
    wishes = {} if wish is None else {"annotations": {"gpushare/placement": wish}}
    for name in ("first", "second"):
        assert await asking.bind(a_pod(server, name, 4, **wishes), "small") == ""
    assert (gpu_of(server, "first") != gpu_of(server, "second")) is spread

"""Starts of containers that a plugin may refuse at first: the kubelet tries again, as it tells pods."""

from collections.abc import Mapping

from gpushare_plugin.testing.kubelet import ContainerStartError, EmbeddedKubelet, Pod, StartedContainer
from tests.waiting import PATIENCE

MOST_TRIES = int(PATIENCE)
"""Tries after which a test fails; a refusal takes some seconds."""


async def start(kubelet: EmbeddedKubelet, pod: Pod) -> Mapping[str, StartedContainer]:
    """Let a pod in, and return its containers once all have started."""
    try:
        return (await kubelet.admit(pod)).containers
    except ContainerStartError:
        return {each.name: await start_again(kubelet, pod, each.name) for each in pod.in_order()}


async def start_again(kubelet: EmbeddedKubelet, pod: Pod, container: str) -> StartedContainer:
    """Start a container of a pod anew, and return the container once it has started."""
    for _ in range(MOST_TRIES):
        try:
            return await kubelet.restart_container(pod, container)
        except ContainerStartError:
            pass  # the kubelet tries again
    return await kubelet.restart_container(pod, container)

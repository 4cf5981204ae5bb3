"""The client that asks a DRA plugin and its floor alike; and the program `python -m benchmarks.kubelet.claims ROOT`.

The program is a DRA plugin below ROOT whose claims are all prepared: an answer costs what the plugin itself costs.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from gpushare_plugin.base.published import Published
from gpushare_plugin.core.prepared_claim import ClaimId, PreparedDevice
from gpushare_plugin.kubelet.api import dra_health_pb2 as health
from gpushare_plugin.kubelet.api import dra_health_pb2_grpc as health_rpc
from gpushare_plugin.kubelet.api import dra_v1_pb2 as api
from gpushare_plugin.kubelet.api import dra_v1_pb2_grpc as rpc
from gpushare_plugin.kubelet.api import pluginregistration_pb2_grpc as registration_rpc
from gpushare_plugin.kubelet.dra_plugin.claim_service import DeviceHealth
from gpushare_plugin.kubelet.dra_plugin.plugin import DraPlugin
from gpushare_plugin.kubelet.dra_plugin.sockets import PLUGINS, REGISTRY

DRIVER = "gpu.example.com"
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


def request(number: int = 0) -> api.NodePrepareResourcesRequest:
    """Return the kubelet's request for a pod with one claim."""
    return api.NodePrepareResourcesRequest(claims=[api.Claim(namespace="default", name="share", uid=uid(number))])


def uid(number: int) -> str:
    """Return the UID of a claim, as long as UIDs are."""
    return f"6ba7b810-9dad-11d1-80b4-{number:012d}"


class PreparedClaims:
    """Claims that are all prepared with a share of one GPU."""

    health: Published[tuple[DeviceHealth, ...]] = Published(())

    async def prepare(self, ids: Sequence[ClaimId]) -> Mapping[str, tuple[PreparedDevice, ...] | str]:
        """Return the share of each."""
        return {each.uid: (_share(each.uid),) for each in ids}

    async def unprepare(self, ids: Sequence[ClaimId]) -> Mapping[str, str]:
        """Say yes."""
        return {each.uid: "" for each in ids}


def _share(claim: str) -> PreparedDevice:
    name = f"{DRIVER}/claim={claim}-gpu"
    return PreparedDevice("gpu", "node", "gpu-0", "GPU-0", "memory", share_id=claim, cdi_devices=(name,))


class Asked:
    """The connections of a kubelet to a DRA plugin: to its endpoint, and to where it registers."""

    def __init__(self, endpoint: Path, registration: Path) -> None:
        """Prepare to connect."""
        self.endpoint = endpoint
        self._channels = [
            grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) for socket in (endpoint, registration)
        ]
        self.calls: rpc.DRAPluginAsyncStub = rpc.DRAPluginStub(self._channels[0])
        self._health: health_rpc.DRAResourceHealthAsyncStub = health_rpc.DRAResourceHealthStub(self._channels[0])
        self.registration: registration_rpc.RegistrationAsyncStub = registration_rpc.RegistrationStub(self._channels[1])

    async def __aenter__(self) -> Self:
        """Connect."""
        for channel in self._channels:
            await channel.channel_ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hang up."""
        for channel in self._channels:
            await channel.close()

    async def hear_health(self) -> None:
        """Hear of the health of the devices until cancelled."""
        async for _ in self._health.NodeWatchResources(health.NodeWatchResourcesRequest()):
            pass


async def main(root: Path) -> None:
    """Serve until killed."""
    for directory in (REGISTRY, PLUGINS):
        (root / directory).mkdir()
    await DraPlugin(root, DRIVER, PreparedClaims()).run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

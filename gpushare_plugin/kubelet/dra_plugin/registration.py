"""The registration of a DRA plugin: the kubelet asks who serves, and tells whether it takes the plugin.

Both answers come from memory at once: the kubelet waits for 1 s for the first (kubernetes:
pkg/kubelet/pluginmanager/operationexecutor/operation_generator.go).
"""

from collections.abc import Callable

import grpc

from gpushare_plugin.base.published import Published
from gpushare_plugin.base.structs import Struct
from gpushare_plugin.base.text import visible
from gpushare_plugin.kubelet.api import pluginregistration_pb2 as api
from gpushare_plugin.kubelet.api import pluginregistration_pb2_grpc as rpc
from gpushare_plugin.kubelet.serving.own_socket import Options

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth")
"""The services at the endpoint; a kubelet takes the first that the kubelet knows, and the health beside it.

Source: pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go in kubernetes (`validateSupportedServices`).
"""

SERVER_OPTIONS: Options = (
    # A refusal in words is all that comes.
    ("grpc.max_receive_message_length", 64 * 1024),
    # A kubelet connects to register and hangs up; whether the plugin is there it sees by its connection to the other
    # socket (kubernetes 1.36: pkg/kubelet/pluginmanager/pluginwatcher/README.md).
    ("grpc.max_connection_idle_ms", 60_000),
)
"""Options of the gRPC server for the registration."""

_LONGEST_REFUSAL = 1024
"""Characters of the kubelet's reason that are kept."""

Context = grpc.aio.ServicerContext[object, object]


class Registration(Struct, frozen=True):
    """What the kubelet said of the plugin."""

    times: int = 0
    """How often the kubelet took the plugin. After each time, the ResourceSlices may have to be made anew."""
    refusal: str = ""
    """Why the kubelet does not take the plugin; empty where the kubelet took the plugin, or has said nothing."""

    @property
    def stands(self) -> bool:
        """Whether the kubelet took the plugin, and has said nothing else since."""
        return self.times > 0 and not self.refusal


class RegistrationService(rpc.RegistrationServicer):
    """Answers the kubelet about one DRA plugin."""

    def __init__(self, driver: str, endpoint: str, said: Callable[[Registration], None]) -> None:
        """Answer for the DRA driver `driver` at the socket `endpoint`; `said` is called with what the kubelet said."""
        self._info = api.PluginInfo(type="DRAPlugin", name=driver, endpoint=endpoint, supported_versions=SERVICES)
        self._said = said
        self.registration = Published(Registration())
        """What the kubelet said last."""

    def add_to(self, server: grpc.aio.Server) -> None:
        """Answer the calls to `server`, which has not been started."""
        rpc.add_RegistrationServicer_to_server(self, server)

    async def GetInfo(self, request: api.InfoRequest, context: Context) -> api.PluginInfo:  # noqa: ARG002, N802 - fixed by gRPC
        """Say who serves, and where."""
        return self._info

    async def NotifyRegistrationStatus(  # noqa: N802 - fixed by gRPC
        self,
        request: api.RegistrationStatus,
        context: Context,  # noqa: ARG002 - fixed by gRPC
    ) -> api.RegistrationStatusResponse:
        """Keep what the kubelet says."""
        times = self.registration.value.times
        if request.plugin_registered:
            said = Registration(times + 1)
        else:
            said = Registration(times, visible(request.error)[:_LONGEST_REFUSAL] or "no reason given")
        self._said(said)
        self.registration.publish(said)
        return api.RegistrationStatusResponse()

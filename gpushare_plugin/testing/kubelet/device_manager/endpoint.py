"""The plugin in charge of a resource, and since when there is none."""

from dataclasses import dataclass

from gpushare_plugin.kubelet.api.deviceplugin_pb2 import DevicePluginOptions
from gpushare_plugin.testing.kubelet.device_manager.client import PluginClient
from gpushare_plugin.testing.kubelet.shared.errors import DeviceManagerError

GRACE_SECONDS = 300.0
"""How long a resource outlives its plugin."""


@dataclass(slots=True)
class PluginEndpoint:
    """The plugin in charge of `resource`; after a restart of the kubelet there is no `client` until it registers.

    `stopped_at` is the clock's time at which the plugin was lost, None while it is there.
    """

    resource: str
    client: PluginClient | None
    options: DevicePluginOptions
    stopped_at: float | None = None

    def expired(self, now: float) -> bool:
        """Whether the plugin has been away for longer than the kubelet waits."""
        return self.stopped_at is not None and now - self.stopped_at > GRACE_SECONDS

    def running(self) -> PluginClient:
        """Give the plugin to call; raises DeviceManagerError once it is lost."""
        if self.client is None or self.stopped_at is not None:
            raise DeviceManagerError(f"endpoint {self.resource} has been stopped")
        return self.client

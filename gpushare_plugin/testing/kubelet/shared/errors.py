"""What the embedded kubelet raises: the words are the real kubelet's, because that is what users search for."""

from typing import TYPE_CHECKING

from gpushare_plugin.base.errors import GpushareError

if TYPE_CHECKING:
    import grpc

    from gpushare_plugin.testing.kubelet.shared.pods import Pod


class DeviceManagerError(GpushareError):
    """The device manager cannot do what it was asked; the message is the one the real device manager gives."""


class PluginCallError(DeviceManagerError):
    """A call to a device plugin failed; the message has the form in which Go prints the status of a call."""

    def __init__(self, code: "grpc.StatusCode", details: str | None) -> None:
        """Say `code` by Go's name for it, such as `InvalidArgument`, and the plugin's own `details`."""
        name = "Canceled" if code.name == "CANCELLED" else code.name.title().replace("_", "")
        super().__init__(f"rpc error: code = {name} desc = {details or ''}")


class AdmissionError(GpushareError):
    """The kubelet refused `pod`: `reason` and the message are what its status would show."""

    reason = "UnexpectedAdmissionError"

    def __init__(self, pod: "Pod", cause: DeviceManagerError) -> None:
        """Wrap `cause`, whose words the message holds."""
        super().__init__(f"Allocate failed due to {cause}, which is unexpected")
        self.pod = pod


class ContainerStartError(GpushareError):
    """A container of an admitted `pod` could not be started; its devices stay the pod's, and a restart tries again."""

    reason = "CreateContainerConfigError"

    def __init__(self, pod: "Pod", container: str, cause: GpushareError) -> None:
        """Name `container` and wrap `cause`, whose words the message holds."""
        super().__init__(f"container {container!r} of pod {pod.namespace}/{pod.name} cannot be started: {cause}")
        self.pod = pod
        self.container = container


class KubeletCrashError(GpushareError):
    """The real kubelet would have ended here: a device left its plugin's list while it was being allocated."""


class DraError(GpushareError):
    """The DRA manager cannot do what it was asked; the message is the one the real DRA manager gives."""


class PrepareError(GpushareError):
    """The claims of a `pod` are not prepared: `reason` and the message are those of the Event.

    The pod stays on the node, and the kubelet tries again when the kubelet looks at the pod the next time, after 60 to
    90 s (kubernetes: pkg/kubelet/kuberuntime/kuberuntime_manager.go, SyncPod).
    """

    reason = "FailedPrepareDynamicResources"

    def __init__(self, pod: "Pod", cause: GpushareError) -> None:
        """Wrap `cause`, whose words the message holds."""
        super().__init__(f"Failed to prepare dynamic resources: prepare dynamic resources: {cause}")
        self.pod = pod


class UnprepareError(GpushareError):
    """A `pod` stays in Terminating, because a claim of the pod cannot be unprepared."""

    def __init__(self, pod: "Pod", cause: GpushareError) -> None:
        """Wrap `cause`, whose words the message holds."""
        super().__init__(f"error syncing pod {pod.namespace}/{pod.name}: unprepare dynamic resources: {cause}")
        self.pod = pod

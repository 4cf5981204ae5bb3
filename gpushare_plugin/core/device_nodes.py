"""The device nodes of Linux by which containers use GPUs.

Source: internal/rm/nvml_devices.go in NVIDIA/k8s-device-plugin, also for MIG instances.
"""

from gpushare_plugin.core.gpu import Gpu

CONTROL_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Device nodes needed by every CUDA program beside the device node of the GPU; a driver may lack some of them."""


def device_nodes(gpu: Gpu) -> tuple[str, ...] | None:
    """Return the device nodes of a GPU; None for a MIG instance whose device nodes the driver does not list."""
    card = f"/dev/nvidia{gpu.minor}"
    if gpu.mig is None:
        return (card,)
    if gpu.mig.capabilities is None:
        return None
    return (card, *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in gpu.mig.capabilities))

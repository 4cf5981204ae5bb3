"""A container runtime for tests, which runs NVIDIA's hook for limits of memory in each version that is known."""

from gpushare_plugin.testing.runtime.edits import UnresolvableDeviceError
from gpushare_plugin.testing.runtime.runtime import ContainerError, HookVersion, Mode, RunningContainer, Runtime

__all__ = ["ContainerError", "HookVersion", "Mode", "RunningContainer", "Runtime", "UnresolvableDeviceError"]

"""Isolation by both NVIDIA's driver and CUDA MPS: programs run at the same time, and the limits of memory always hold.

The driver limits all processes of a container together, on each GPU, whatever a process does to its environment. MPS
limits compute, and evicts programs that borrow memory (see `burst` in the config).
"""

from collections.abc import Iterable
from typing import ClassVar

from gpushare_plugin.config.findings import Findings
from gpushare_plugin.core.gpu import Gpu
from gpushare_plugin.sharing.isolation.driver import DriverIsolation
from gpushare_plugin.sharing.isolation.layer import Layers, SharedGpus
from gpushare_plugin.sharing.isolation.mps import MpsIsolation, UnderMps


class DriverAndMpsIsolation(MpsIsolation, frozen=True):
    """The isolation of an entry with `isolation: driver+mps`, and of entries of `sharing.mps` with `driver`."""

    name: ClassVar[str] = "driver+mps"

    driver: DriverIsolation
    """The part of the isolation that the driver enforces."""

    @property
    def keys_in_force(self) -> frozenset[str]:
        """The keys of the burst and of the compute limit."""
        return super().keys_in_force | self.driver.keys_in_force

    @property
    def limits_several_gpus(self) -> bool:
        """Whether the limits of a container hold on each of several GPUs, as those of the driver do."""
        return True

    @property
    def limit_is_seen(self) -> bool:
        """Whether programs see the limit as the memory of the GPU: the driver tells the limit."""
        return True

    @property
    def layers(self) -> Layers:
        """The layers of MPS and of the driver."""
        return (self.client(self.driver.rule), *self.driver.layers)

    def mode(self, gpu: Gpu) -> UnderMps:
        """Return the mode of `gpu`, with the default memory limit of MPS and the mode of the driver limits."""
        parts = self.limits.equal_parts
        default = self.driver.rule.most_mib(gpu.memory_mib // parts, gpu.memory_mib) if parts else None
        return UnderMps(default, self.driver.under_driver, self.protocol)

    def why_not(self, gpus: Iterable[Gpu]) -> str:
        """Return why this node lacks the driver limits or MPS on `gpus`; empty if it has both."""
        present = list(gpus)
        return self.driver.why_not(present) or super().why_not(present)

    def check(self, shared: SharedGpus, findings: Findings) -> None:
        """Find what the node lacks; GPUs on which the driver limits nothing are among those that MPS cannot share."""
        # In sharing.mps, where MPS always limits, people write only the driver.
        found = "driver" if shared.path[:2] == ("sharing", "mps") else self.name
        self.driver.check_node(shared, findings, found, "[driver+mps, mps]")
        super().check(shared, findings)
        self.driver.warn(shared, findings)

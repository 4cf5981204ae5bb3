"""A claim whose limit NVIDIA's hook sets: CDI devices of claim and card, applied by a container runtime."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from gpushare_plugin.base.memory import MIB
from gpushare_plugin.claims.claim import AllocatedClaim, AllocatedDevice
from gpushare_plugin.claims.devices import by_device, device_name
from gpushare_plugin.claims.grants import grants
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.core.driver_limits import LIMIT_VARIABLE, REQUEST_VARIABLE, DriverLimits
from gpushare_plugin.core.prepared_claim import ClaimId
from gpushare_plugin.gpus.cdi.reading import SpecReader
from gpushare_plugin.node.claims.cdi_files import CdiFiles, described, specification
from gpushare_plugin.sharing.plan import plan
from gpushare_plugin.testing.hosts import GPUS
from gpushare_plugin.testing.kubelet import Container, Pod, StartedContainer
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS, FakeNvml, LimitBackend
from gpushare_plugin.testing.runtime import HookVersion
from tests.hosts import two_gpus
from tests.node.claims.node import DRIVER
from tests.node.test_hook_limits import ALL, BACKENDS, Machine
from tests.unit.sharing.settings import memory, settings


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_container_can_allocate_its_share_and_no_more(tmp_path: Path, backend: LimitBackend) -> None:
    """The variables of the claim are what the hook reads; the pod's own change nothing."""
    with ExitStack() as stack:
        nvml = stack.enter_context(FakeNvml(GPUS, driver_version=DRIVER_WITH_LIMITS, limit_backend=backend))
        machine = Machine(nvml, tmp_path, backend, HookVersion.LENIENT, "cdi")
        cdi = SpecReader([machine.spec_dir]).devices(DRIVER_WITH_LIMITS)
        flags = {"plugin": {"deviceListStrategy": "cdi-cri"}}
        config = settings(flags=flags, sharing=memory(isolation="driver"), dra={})
        made = plan(EffectiveConfig(config), two_gpus(ALL), cdi_devices=cdi, driver_limits=DriverLimits())
        assert made.problems == ()
        gpu = next(iter(made.by_claim))
        taken = {"memory": 5 * 1024 * MIB}
        device = AllocatedDevice("gpu", "node", device_name(gpu), "share", taken)
        claim = AllocatedClaim(ClaimId("default", "claim", "uid-1"), (device,))
        given = grants(claim, by_device(made.by_claim))
        document = specification(DRIVER, claim.id.uid, given)
        CdiFiles(machine.spec_dir, DRIVER).keep(claim.id.uid, document)
        names = (*described(document), *given["gpu"].cdi_devices)
        started = StartedContainer("main", {}, (), (), {}, names, {})
        own = {REQUEST_VARIABLE: str(ALL), LIMIT_VARIABLE: str(ALL)}
        container = machine.runtime.start(Pod("pod", [Container("main")]), started, image=own)
        assert machine.runtime.room(container, 0) == 5 * 1024

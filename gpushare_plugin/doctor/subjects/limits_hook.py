"""The hook of NVIDIA's container toolkit that sets driver limits: whether the CDI devices that containers get have it.

Facts: the hook is in NVIDIA/nvidia-container-toolkit, cmd/nvidia-cdi-hook/apply-cuda-memory-limits; from version 1.20.1
on, every specification of full GPUs that the toolkit makes has it. The daemon counts on the hook only where containers
get CDI devices, since it sees neither the toolkit's version nor the specifications of just-in-time CDI. It has the
toolkit make its own specification where the toolkit is there (`gpushare_plugin.gpus.cdi.own`).
"""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.base.text import some_of
from gpushare_plugin.core.cdi import OWN_KIND
from gpushare_plugin.core.driver_limits import LIMITS_HOOK
from gpushare_plugin.doctor.node.diagnosis import Defect
from gpushare_plugin.doctor.node.needs import strategies
from gpushare_plugin.doctor.node.packages import is_at_least
from gpushare_plugin.doctor.subjects.cdi import SpecificationLook, generates, is_refreshed
from gpushare_plugin.doctor.subjects.toolkit import DISABLED_HOOKS, REFRESH_VARIABLES, ToolkitFacts

_FIRST_WITH_HOOK = (1, 20, 1)
_ALL_HOOKS = "all"
_NAMES_TO_SHOW = 3
_RESTART = "restart the daemon of gpushare on this node, which then writes its specification again"
_START_DAEMON = (
    "start the daemon of gpushare, or restart a daemon that runs; the daemon then writes a specification of its own "
    "with the hook"
)


def no_hook(look: SpecificationLook) -> Defect | None:
    """Return why the daemon counts on no hook; None if the CDI device of each GPU has the hook, or will have it."""
    if not look.needs.cdi:
        without = "containers get no CDI devices, and the daemon sees hooks of CDI devices only"
        by_name = no_hook(replace(look, needs=replace(look.needs, cdi=True), served=False))
        steps = (look.by_cdi, *([by_name.remedy] if by_name else []))
        return Defect(f"{without} ({strategies(look.needs)})", ". Then ".join(steps))
    devices = look.devices_of_config
    if any(device is None for device in devices):
        return _without_device(look)
    without_hook = [device for device in devices if device not in look.cdi.limiting]
    if not without_hook:
        return None
    file = look.cdi.devices[without_hook[0] or ""]
    named = some_of([device or "" for device in without_hook], _NAMES_TO_SHOW)
    return Defect(f"{file} has no {LIMITS_HOOK} for {named}", _adds_hook(look, without_hook[0] or ""))


def will_have_hook(look: SpecificationLook) -> str:
    """Return that the daemon will write a specification with the hook; empty where the specification is there."""
    if not look.needs.cdi or None not in look.devices_of_config:
        return ""
    return f"no CDI specification has the GPUs yet; the daemon will have the toolkit write one, with {LIMITS_HOOK}"


def in_runtime(look: SpecificationLook) -> bool:
    """Return whether NVIDIA's runtime runs the hook in each container, by specifications that it makes itself."""
    toolkit = look.toolkit
    has_hook = is_at_least(toolkit.version, *_FIRST_WITH_HOOK) and not _leaves_out(toolkit.disabled_hooks)
    return look.needs.runtime and not look.needs.cdi and bool(toolkit.just_in_time) and has_hook


def _without_device(look: SpecificationLook) -> Defect | None:
    """Return why a GPU without a CDI device has no hook; None where the daemon will write a device with the hook."""
    if look.served:
        return Defect("no CDI specification has the GPUs", "mend the line about CDI specifications first")
    if is_at_least(look.toolkit.version, *_FIRST_WITH_HOOK):
        return None
    version = f"toolkit {look.toolkit.version}" if look.toolkit.version else "the toolkit of this node"
    found = f"the daemon will have the toolkit write a CDI specification, and {version} has no {LIMITS_HOOK}"
    if look.toolkit.directory is None:
        found = f"the node has no toolkit, which would write a CDI specification with {LIMITS_HOOK}"
    return Defect(found, f"{_upgrade(look.toolkit)}. Then {_START_DAEMON}")


def _adds_hook(look: SpecificationLook, device: str) -> str:
    """Return what brings the hook to a device without it, as an instruction."""
    toolkit = look.toolkit
    by_hand = "" if is_refreshed(look) else ". Leave out the option --disable-hook"
    steps = [_RESTART if device.startswith(f"{OWN_KIND}=") else f"{generates(look)}{by_hand}"]
    if is_refreshed(look) and _leaves_out(toolkit.refresh_disabled_hooks):
        steps.insert(0, f"remove {LIMITS_HOOK} from {DISABLED_HOOKS} in {REFRESH_VARIABLES}")
    if not is_at_least(toolkit.version, *_FIRST_WITH_HOOK):
        steps.insert(0, _upgrade(toolkit))
    return ". Then ".join(steps)


def _leaves_out(hooks: tuple[str, ...]) -> bool:
    return not {LIMITS_HOOK, _ALL_HOOKS}.isdisjoint(hooks)


def _upgrade(toolkit: ToolkitFacts) -> str:
    first = ".".join(map(str, _FIRST_WITH_HOOK))
    if toolkit.directory is None:
        return f"install NVIDIA's container toolkit {first} or newer (package nvidia-container-toolkit)"
    now = f", {toolkit.version} now," if toolkit.version else ""
    return f"upgrade NVIDIA's container toolkit{now} to {first} or newer (NVIDIA's operator: from 26.7.1 on)"

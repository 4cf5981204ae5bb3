"""Which isolation an entry of the settings asks for; a new isolation is a module and a case here."""

from gpushare_plugin.config.schema.sections import Config, MemoryResource, MpsResource, SizedDevices, TimeSlicedResource
from gpushare_plugin.sharing.framework_hints import FrameworkHints
from gpushare_plugin.sharing.hami_core import HamiCore
from gpushare_plugin.sharing.isolation import Layers, Told
from gpushare_plugin.sharing.mps import MpsClient

EntrySettings = MemoryResource | TimeSlicedResource | MpsResource | SizedDevices


def layers(settings: EntrySettings, config: Config, *, cgpu_disabled: bool) -> Layers:
    """Return what `settings`, an entry of `config`, gives to containers so that they stay within their share.

    `cgpu_disabled` is what the node label `cgpu.disable.isolation` says.
    """
    told: Layers = (Told(),)
    match settings:
        case TimeSlicedResource(isolation="none"):
            told = ()
        case MemoryResource(isolation="none"):
            told = (Told(cgpu_disabled),)
    hints: Layers = (FrameworkHints(),) if isinstance(settings, MemoryResource) and settings.framework_hints else ()
    return (*told, *_enforced(settings, config), *hints)


def _enforced(settings: EntrySettings, config: Config) -> Layers:
    root, library = config.flags.mps_root, config.hami_core.library_directory
    match settings:
        case MpsResource():
            return (MpsClient(root, own_memory_limit=False),)
        case SizedDevices():
            return (MpsClient(root),)
        case MemoryResource(isolation="mps", compute=compute):
            return (MpsClient(root, compute),)
        case MemoryResource(isolation="hami-core", compute=compute):
            return (HamiCore(library, compute),)
        case TimeSlicedResource(isolation="hami-core"):
            return (HamiCore(library, "unlimited"),)
        case _:
            return ()


def under_mps(settings: EntrySettings) -> bool:
    """Tell whether the GPUs of an entry are shared through MPS."""
    return isinstance(settings, (MpsResource, SizedDevices)) or settings.isolation == "mps"

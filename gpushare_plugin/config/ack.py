"""What the node labels of Alibaba Cloud's ACK mean in our settings."""

from gpushare_plugin.config.schema import names
from gpushare_plugin.config.schema.sections import Config, MemoryResource, MemoryResources, Sharing
from gpushare_plugin.config.schema.values import AllDevices


def shared_through_mps(config: Config) -> Config:
    """Return what `config` becomes on a node with the label `ack.node.gpu.schedule=mps`.

    All GPUs are shared by memory as `aliyun.com/gpu-mem`, under MPS, and in no other way. What the entry of that name
    says otherwise, such as its unit, stays.
    """
    entries = config.sharing.memory.resources if config.sharing.memory else ()
    entry = next((entry for entry in entries if entry.name == names.MEMORY), MemoryResource(name=names.MEMORY))
    under_mps = entry.model_copy(update={"devices": AllDevices(), "isolation": "mps"})
    return config.model_copy(update={"sharing": Sharing(memory=MemoryResources(resources=(under_mps,)))})

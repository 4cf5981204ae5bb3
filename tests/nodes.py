"""GPUs for tests of the core, made without any host."""

from gpushare_plugin.model.gpu import Gpu, Inventory


def a_gpu(index: int, memory_mib: int = 40960, **changes: object) -> Gpu:
    """Return GPU number `index`, of `memory_mib` MiB, with `changes` to its other fields."""
    fields: dict[str, object] = {
        "index": index,
        "uuid": f"GPU-{index:08x}-0000-4000-8000-{index:012x}",
        "minor": index,
        "name": "NVIDIA A100-SXM4-40GB",
        "compute_capability": (8, 0),
        "memory_mib": memory_mib,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
    }
    return Gpu(**(fields | changes))  # type: ignore[arg-type] # tests name the fields they change


def a_node(*memory_mib: int, **changes: object) -> Inventory:
    """Return a node with one GPU for each size in MiB."""
    return Inventory(tuple(a_gpu(index, size, **changes) for index, size in enumerate(memory_mib)))

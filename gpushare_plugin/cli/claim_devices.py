"""The devices that a config offers to claims, for people: their capacities, and what differs between two configs."""

from collections.abc import Iterable, Iterator, Mapping

from gpushare_plugin.claims.device import Capacity, Device
from gpushare_plugin.kube.dra.devices import quantity


def device_lines(driver: str, devices: Mapping[str, Device]) -> Iterator[str]:
    """Yield a line for all devices of the DRA driver that are alike; `devices` are by the label of the GPU."""
    words = ((label, "; ".join(_words(device).values())) for label, device in devices.items())
    for text, labels in _together(words):
        yield f"{driver}: GPU {labels} by claim, {text}"


def device_changes(old: Mapping[str, Device], new: Mapping[str, Device]) -> Iterator[str]:
    """Yield a line for all GPUs with the same change; `old` and `new` are by the label of the GPU."""
    before, after = ({label: _words(device) for label, device in each.items()} for each in (old, new))
    changes = ((label, _change(before.get(label), after.get(label))) for label in before | after)
    for text, labels in _together((label, text) for label, text in changes if text):
        yield f"GPU {labels}: {text}"


def driver_change(old: str, new: str) -> Iterator[str]:
    """Yield a line for another name of the DRA driver; a name is empty without GPUs by claim."""
    if old and new and old != new:
        yield (
            f"dra.driver: {old} -> {new}: a node gives GPUs by claim under the new name once all of its claims of "
            f"{old} have ended"
        )


def _together(texts: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each text once, with the labels of its GPUs."""
    labels: dict[str, list[str]] = {}
    for label, text in texts:
        labels.setdefault(text, []).append(label)
    return ((text, ", ".join(each)) for text, each in labels.items())


def _change(old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> str:
    if old is None or new is None:
        return f"added, {'; '.join(new.values())}" if new else f"removed, was {'; '.join((old or {}).values())}"
    differing = [part for part in {**old, **new} if old.get(part) != new.get(part)]
    return "; ".join(f"{old.get(part, 'nothing')} -> {new.get(part, 'nothing')}" for part in differing)


def _words(device: Device) -> dict[str, str]:
    """Return how a device is shared, and each of its capacities, in words."""
    way, isolation = device.attributes["way"], device.attributes["isolation"]
    shared = f"shared by {way}, isolation {isolation}" if device.shared else "whole"
    return {"": shared} | {name: f"{name} {_capacity(each)}" for name, each in device.capacities.items()}


def _capacity(capacity: Capacity) -> str:
    def shown(amount: int) -> str:
        return quantity(amount, capacity.unit)

    if capacity.default is None:
        return shown(capacity.amount)
    parts = f" in parts of {' or '.join(map(shown, capacity.values))}" if capacity.values else ""
    steps = f" in steps of {shown(capacity.step)}" if capacity.step and capacity.unit == "bytes" else ""
    return f"{shown(capacity.amount)}{parts}{steps} ({shown(capacity.default)} by default)"

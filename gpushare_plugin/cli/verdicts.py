"""The verdicts of `gpushare check-config` on configs, for people and in JSON."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpushare_plugin.base.errors import MOST_PROBLEMS, Problem
from gpushare_plugin.claims.device import Device
from gpushare_plugin.claims.devices import NodeDevices, node_devices
from gpushare_plugin.cli.claim_devices import device_lines
from gpushare_plugin.config.loading.load import Loaded, nothing_at, validated
from gpushare_plugin.config.loading.manifests import FoundConfig
from gpushare_plugin.config.loading.mistakes import Override
from gpushare_plugin.config.schema.isolations import includes_driver
from gpushare_plugin.config.schema.places import Finding, SettingPlaces, spelled
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.core.resource import Resource
from gpushare_plugin.gpus.host import NO_FACTS, HostFacts
from gpushare_plugin.kube.dra.devices import device_data
from gpushare_plugin.node.configuration import planned
from gpushare_plugin.observe.node.report import chosen_isolations
from gpushare_plugin.sharing.plan import Plan


@dataclass(frozen=True, slots=True)
class ConfigVerdict:
    """The verdict on a config: its mistakes, warnings and resources."""

    found: FoundConfig
    """The config and its place."""
    loaded: Loaded
    """The validated config with its mistakes."""
    plan: Plan | None = None
    """The plan for the GPUs of a node; None without GPUs."""
    offered: NodeDevices = field(default_factory=NodeDevices)
    """The devices that the node would offer to claims; none without GPUs."""

    @classmethod
    def on(cls, found: FoundConfig, overrides: Sequence[Override]) -> "ConfigVerdict":
        """Return the verdict on a config with the values of `overrides`, before any look at GPUs."""
        root = found.root or nothing_at(found.source)
        if found.is_elsewhere:
            return cls(found, Loaded(None, (), (), SettingPlaces(root)))
        return cls(found, validated(root, found.findings, overrides))

    def with_gpus(self, inventory: Inventory, facts: HostFacts = NO_FACTS) -> "ConfigVerdict":
        """Return the verdict on the config for a node with the GPUs of `inventory` and these facts of the host."""
        if self.loaded.effective is None:
            return self
        plan = planned(self.loaded, self.loaded.effective, inventory, facts=facts)
        return ConfigVerdict(self.found, self.loaded, plan, node_devices(plan.by_claim, inventory))

    @property
    def _problems(self) -> Sequence[Problem | Finding]:
        return (*self.loaded.problems, *(self.plan.problems if self.plan else ()))

    @property
    def mistakes(self) -> list[str]:
        """The mistakes with their places, one mistake a line."""
        return self.loaded.lines(self._problems)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that are accepted without effect, or with an unexpected effect; empty for a config with mistakes."""
        if self._problems:
            return ()
        taken = (self.found.values.warning,) if self.found.values and self.found.values.warning else ()
        return (*taken, *self.loaded.notices, *(self.plan.notices if self.plan else ()), *self.offered.notices)

    @property
    def warning_lines(self) -> list[str]:
        """The warnings with the config's name, one warning a line."""
        return [f"{self.found}: warning: {warning}" for warning in self.warnings]

    @property
    def resources(self) -> tuple[Resource, ...]:
        """The resources that the node would advertise; empty without GPUs."""
        return self.plan.resources if self.plan else ()

    @property
    def cdi_names(self) -> dict[str, str]:
        """The CDI devices that containers would get, by the label of the GPU; empty without CDI and without GPUs."""
        gpus = {gpu.uuid: gpu.label for resource in self.resources for gpu in resource.gpus.values()}
        return {gpus[uuid]: name for uuid, name in self.plan.cdi_names.items()} if self.plan else {}

    @property
    def isolations(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """The isolation of each shared GPU and why others before it were not chosen, by the label of the GPU."""
        plan = self.plan or Plan()
        gpus = {gpu.uuid: gpu.label for resource in self.resources for gpu in resource.gpus.values()}
        return {
            gpus[uuid]: (name, plan.isolation_reasons.get(uuid, ()))
            for uuid, name in plan.isolations.items()
            if uuid in gpus
        }

    @property
    def _told_isolations(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Those of `isolations` that people are told: of a list, and by the driver."""
        plan = self.plan or Plan()
        listed = {
            gpu.label for each in self.resources for gpu in each.gpus.values() if gpu.uuid in plan.isolation_reasons
        }
        return {label: each for label, each in self.isolations.items() if label in listed or includes_driver(each[:1])}

    @property
    def devices(self) -> dict[str, Device]:
        """The devices that claims could get, by the label of the GPU."""
        gpus = self.plan.by_claim if self.plan else {}
        return {gpus[device.gpu].gpu.label: device for device in self.offered.devices}

    @property
    def driver(self) -> str:
        """The name of the DRA driver; empty without GPUs by claim."""
        dra = self.loaded.config.dra if self.loaded.config else None
        return dra.driver if dra else ""

    @property
    def _device_data(self) -> list[dict[str, Any]]:
        return [device_data(device) for device in self.offered.devices]

    def lines(self, gpus: str | None) -> Iterator[str]:
        """Yield the lines of the verdict for people; `gpus` names the GPUs of the check, None without GPUs."""
        if mistakes := self.mistakes:
            yield f"{self.found}: {_counted(len(mistakes), 'mistake')}"
            yield from mistakes
            return
        warnings = f" with {_counted(len(self.warnings), 'warning')}" if self.warnings else ""
        verdict = self.found.values.note if self.found.values else "valid"
        advertised = f"; {gpus} would be advertised as:" if gpus and self.plan else ""
        yield f"{self.found}: {verdict}{warnings}{advertised}"
        for resource in self.resources:
            on = ", ".join(gpu.label for gpu in resource.gpus.values())
            yield f"  {resource.name}: {len(resource.units)} on GPU {on}"
        yield from (f"  {line}" for line in device_lines(self.driver, self.devices))
        yield from (f"  {sentence}" for sentence in chosen_isolations(self._told_isolations))
        for label, name in self.cdi_names.items():
            yield f"  CDI device of GPU {label}: {name}"
        yield from self.warning_lines

    def data(self, *, settings: bool) -> dict[str, Any]:
        """Return the verdict for programs, with `settings` including the effective settings."""
        config, problems = self.loaded.config, self.loaded.places.placed(self._problems)[:MOST_PROBLEMS]
        data: dict[str, Any] = {
            "file": self.found.source,
            "name": self.found.name,
            "valid": not problems,
            "mistakes": [_mistake(each) for each in problems],
            "warnings": list(self.warnings),
            "resources": [_resource(each) for each in self.resources] if self.plan and not problems else None,
            "isolations": _isolations(self.isolations) if self.plan and not problems else None,
            "devices": self._device_data if self.plan and not problems else None,
            "cdiDevices": self.cdi_names if self.plan and not problems else None,
        }
        if settings:
            data["settings"] = config and config.model_dump(mode="json", by_alias=True, exclude_none=True)
        return data


def summary(verdicts: Sequence[ConfigVerdict]) -> str:
    """Return the numbers of valid configs, of configs with warnings, and of configs with mistakes, in words."""
    verdicts = [verdict for verdict in verdicts if not verdict.found.is_elsewhere]
    wrong = sum(bool(verdict.mistakes) for verdict in verdicts)
    warned = sum(bool(verdict.warnings) for verdict in verdicts)
    counts = [f"{len(verdicts) - wrong} valid"]
    counts += [f"{warned} of them with warnings"] if warned else []
    counts += [f"{wrong} with mistakes"] if wrong else []
    return f"{_counted(len(verdicts), 'config')}: {', '.join(counts)}"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _mistake(finding: Finding) -> dict[str, Any]:
    place, message = finding.place, finding.message
    return {
        "file": place.source,
        "line": place.line or None,
        "column": place.column or None,
        "path": spelled(place.path),
        "message": message,
    }


def _isolations(chosen: Mapping[str, tuple[str, tuple[str, ...]]]) -> dict[str, Any]:
    return {label: {"name": name, "passedOver": list(reasons)} for label, (name, reasons) in chosen.items()}


def _resource(resource: Resource) -> dict[str, Any]:
    return {
        "name": resource.name,
        "units": len(resource.units),
        "gpus": [gpu.label for gpu in resource.gpus.values()],
    }

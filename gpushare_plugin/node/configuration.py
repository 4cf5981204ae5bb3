"""The config in effect, the rejected config, and the reloads of the config."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from gpushare_plugin.base.errors import ConfigError, GpushareError
from gpushare_plugin.base.structs import Struct, replace
from gpushare_plugin.config.difference import difference
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.loading.load import NO_FILE, Loaded
from gpushare_plugin.config.schema.sections import Config
from gpushare_plugin.config.unreported_memory import sized
from gpushare_plugin.core.device_nodes import CONTROL_DEVICES
from gpushare_plugin.core.driver_limits import DriverLimits
from gpushare_plugin.core.gpu import Gpu, Inventory
from gpushare_plugin.core.isolation_choice import choice_words, first_of_list
from gpushare_plugin.core.resource import Resource, Units
from gpushare_plugin.core.snapshot import ConfigStanding
from gpushare_plugin.gpus.host import NO_FACTS, Host, HostFacts
from gpushare_plugin.gpus.source import in_thread
from gpushare_plugin.node.news.news import (
    CdiDevicesNamed,
    ConfigChanged,
    ConfigDoesNotFitGpus,
    ConfigReadable,
    ConfigRejected,
    ConfigUnreadable,
    ConfigValidAgain,
    GpuIsolationNotFirst,
    GpusChanged,
    MpsProtocolKept,
    MpsRootKept,
    News,
)
from gpushare_plugin.sharing.plan import Plan, plan
from gpushare_plugin.sharing.ways.way import SliceNumbers
from gpushare_plugin.slices.slice import SliceKind


class Accepted(Struct, frozen=True):
    """A config without mistakes for the present GPUs."""

    loaded: Loaded
    """The result of loading the config."""
    config: Config
    """The effective config."""
    plan: Plan
    """The plan of the config for the present GPUs."""


def accept(
    loaded: Loaded,
    inventory: Inventory,
    cut: Mapping[str, SliceNumbers] | None = None,
    facts: HostFacts = NO_FACTS,
) -> Accepted:
    """Return the config with its plan for these GPUs and these facts of the host; see `plan` for `cut`.

    Raises ConfigError with every mistake of the config itself or, without such a mistake, every conflict of the config
    with these GPUs.
    """
    if loaded.effective is None:
        raise ConfigError(loaded.lines(loaded.problems))
    decided = planned(loaded, loaded.effective, inventory, cut, facts)
    if decided.problems:
        raise ConfigError(loaded.lines(decided.problems))
    return Accepted(loaded, loaded.effective.config, decided)


def planned(
    loaded: Loaded,
    effective: EffectiveConfig,
    inventory: Inventory,
    cut: Mapping[str, SliceNumbers] | None = None,
    facts: HostFacts = NO_FACTS,
) -> Plan:
    """Return the plan of the effective config of `loaded` for these GPUs; conflicts are in the plan's `problems`."""
    present = tuple(path for path in CONTROL_DEVICES if Path(path).exists())
    return plan(
        effective,
        inventory,
        present,
        loaded.places.describe,
        cut=cut,
        cdi_devices=facts.cdi_devices,
        driver_limits=facts.driver_limits,
    )


def decide(loaded: Loaded, inventory: Inventory) -> Plan:
    """Return the plan of a config for these GPUs; raises the errors of `accept`."""
    return accept(loaded, inventory).plan


class _Rejected(NamedTuple):
    """A rejected config."""

    loaded: Loaded
    """The result of loading the config."""
    lines: tuple[str, ...]
    """The mistakes of the config, one line each."""


class Configuration:
    """The config in effect, and the newest config where that was rejected."""

    def __init__(self, accepted: Accepted, inventory: Inventory, news: News, host: Host | None = None) -> None:
        """Start with a config accepted for these GPUs, and for the facts of `host`."""
        self._accepted = accepted
        self._rejected: _Rejected | None = None
        self._unreadable: str | None = None
        self._loaded_at = time.time()
        self._devices = inventory.gpus
        self._host = host or Host()
        self._facts = self._host.facts
        self._cut: Mapping[str, SliceNumbers] = {}
        self._news = news
        self._names: tuple[str, ...] = ()
        self._not_first: Mapping[str, str] = {}
        news.warn((*accepted.loaded.notices, *accepted.plan.notices))
        self._tell_choices()

    @property
    def config(self) -> Config:
        """The config in effect."""
        return self._accepted.config

    @property
    def driver_limits(self) -> DriverLimits | None:
        """The means of the host to set driver limits; None where no config needed a look."""
        return self._facts.driver_limits

    @property
    def partitioning(self) -> SliceKind | None:
        """The kind of slices of a partitioned node, None where the config itself says how GPUs are shared."""
        effective = self._accepted.loaded.effective
        return effective.partitioning if effective is not None else None

    @property
    def plan(self) -> Plan:
        """The plan of the config in effect for the present GPUs."""
        return self._accepted.plan

    @property
    def standing(self) -> ConfigStanding:
        """The name and load time of the config in effect; whether a newer config was rejected or is unreadable."""
        source = self._accepted.loaded.places.root.place.source
        name = "" if source == NO_FILE else Path(source).name
        refused = self._rejected is not None or self._unreadable is not None
        return ConfigStanding(name, self._loaded_at, refused)

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings about the config in effect, and about a rejected or unreadable config."""
        rejected = self._rejected.lines if self._rejected else ()
        unreadable = [self._unreadable] if self._unreadable else []
        return (
            *self._accepted.loaded.notices,
            *self._accepted.plan.notices,
            *(f"configuration rejected: {line}" for line in rejected),
            *(f"the previous configuration stays in effect: {reason}" for reason in unreadable),
        )

    def cut(self, cut: Mapping[str, SliceNumbers], inventory: Inventory) -> None:
        """Plan the GPUs of a partitioned node with these slices, by UUID; the config stays."""
        loaded = self._accepted.loaded
        if cut != self._cut and loaded.effective is not None:
            self._cut = cut
            decided = planned(loaded, loaded.effective, inventory, cut, self._facts)
            # A cut always fits the GPUs, but the config may not fit the remaining GPUs.
            if not decided.problems:
                self._accepted = replace(self._accepted, plan=decided)

    def keep(self, reason: str) -> None:
        """Keep the config in effect because the newest config is unreadable, for this `reason`."""
        # The mistakes of an earlier rejected config help nobody any more.
        self._unreadable, self._rejected = reason, None

    def reload(self, loaded: Loaded, inventory: Inventory) -> bool:
        """Put another config in effect, or reject a config with mistakes; return whether the config changed."""
        self._unreadable = None
        loaded = self._with_first_mps(loaded)
        before, facts = self._accepted, self._host.facts
        if loaded.effective is not None and loaded.effective == before.loaded.effective:
            # The same config may have other warnings, and replaces a rejected config.
            if self._rejected is not None:
                self._news.publish(ConfigValidAgain())
            self._news.warn(notice for notice in loaded.notices if notice not in before.loaded.notices)
            self._accepted, self._rejected = replace(before, loaded=loaded), None
            self._loaded_at = time.time()
            return False
        try:
            accepted = accept(loaded, inventory, self._cut, facts)
        except ConfigError as error:
            # One edit can be read several times: after the change of the file, on SIGHUP, after changes of node labels.
            if self._rejected is None or error.lines != self._rejected.lines:
                self._news.publish(ConfigRejected(error.lines))
            self._rejected = _Rejected(loaded, error.lines)
            return False
        self._news.publish(ConfigChanged(tuple(difference(before.config, accepted.config))))
        self._news.warn((*loaded.notices, *accepted.plan.notices))
        self._accepted, self._rejected, self._devices = accepted, None, inventory.gpus
        self._facts = facts
        self._loaded_at = time.time()
        self._tell_choices()
        return True

    def fit(self, inventory: Inventory) -> bool:
        """Fit the config to other GPUs; return whether a formerly rejected config is in effect now."""
        if inventory.gpus == self._devices:
            self._fit_host(inventory)
            return False
        self._devices, self._facts = inventory.gpus, self._host.facts
        self._news.publish(GpusChanged(tuple(gpu.uuid for gpu in inventory.gpus)))
        try:
            self._accepted = accept(self._accepted.loaded, inventory, self._cut, self._facts)
        except ConfigError as error:
            # The config was right for the previous GPUs; the GPUs still present stay shared in the same way.
            self._news.publish(ConfigDoesNotFitGpus(error.lines))
            present = sized(inventory, self.config.unreported_memory)
            self._accepted = replace(self._accepted, plan=_left(self.plan, present.gpus))
        else:
            self._news.warn(self.plan.notices)
            self._tell_choices()
        return self._rejected is not None and self.reload(self._rejected.loaded, inventory)

    def _fit_host(self, inventory: Inventory) -> None:
        """Name CDI devices and choose isolations for the same GPUs again, where the host changed."""
        if self._host.facts == self._facts:
            return
        self._facts, before = self._host.facts, self.plan.notices
        try:
            self._accepted = accept(self._accepted.loaded, inventory, self._cut, self._facts)
        except ConfigError as error:
            # For example, what set driver limits is gone; GPUs stay shared as before.
            self._news.publish(ConfigDoesNotFitGpus(error.lines))
        else:
            self._news.warn(notice for notice in self.plan.notices if notice not in before)
            self._tell_choices()

    def _tell_choices(self) -> None:
        """Publish the names of CDI devices and the isolations of the plan, where they changed."""
        names = tuple(self.plan.cdi_names.values())
        if names != self._names:
            self._names = names
            self._news.publish(CdiDevicesNamed(names))
        self._tell_isolations()

    def _tell_isolations(self) -> None:
        """Publish the GPUs whose isolation is another one than before, and not the first of its list."""
        plan, before = self.plan, self._not_first
        self._not_first = {uuid: plan.isolations[uuid] for uuid, passed in plan.isolation_reasons.items() if passed}
        for uuid, isolation in self._not_first.items():
            if before.get(uuid) != isolation:
                passed = plan.isolation_reasons[uuid]
                wanted, words = first_of_list(isolation, passed), choice_words(isolation, passed)
                self._news.publish(GpuIsolationNotFirst(uuid, isolation, wanted, words))

    def _with_first_mps(self, loaded: Loaded) -> Loaded:
        # The first MPS root is mounted into containers, and `gpushare mps` uses the first root until a restart. What
        # containers get by a protocol is of no use with another protocol.
        effective, first = loaded.effective, self.config.flags
        if effective is None:
            return loaded
        flags = effective.config.flags
        if flags.mps_root != first.mps_root:
            self._news.publish(MpsRootKept(flags.mps_root, first.mps_root))
        if flags.mps_protocol != first.mps_protocol:
            self._news.publish(MpsProtocolKept(flags.mps_protocol, first.mps_protocol))
        kept = {"mps_root": first.mps_root, "mps_protocol": first.mps_protocol}
        config = effective.config.model_copy(update={"flags": flags.model_copy(update=kept)})
        return replace(loaded, effective=replace(effective, config=config))


class Reloads:
    """Reads the config again after possible changes: one load at a time, so that the newest config comes last."""

    def __init__(
        self, load: Callable[[], Loaded], use: Callable[[Loaded], None], keep: Callable[[str], None], news: News
    ) -> None:
        """Pass the result of `load` to `use`, or the reason of a failure to `keep`; `load` runs in a thread."""
        self._load = load
        self._use = use
        self._keep = keep
        self._news = news
        self._unreadable = False
        self._loading = asyncio.Lock()
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Request a load, or another load after a running load; return at once."""
        self._requested.set()

    async def run(self) -> None:
        """Load the config now, and after each request."""
        while True:
            self._requested.clear()
            await self.reload()
            await self._requested.wait()

    async def reload(self) -> None:
        """Load the config and use it; publish an unreadable config, and keep the config in effect."""
        async with self._loading:
            try:
                # A large file, or a program that describes CDI devices, takes a while: neither calls of the kubelet nor
                # the end of the process must wait.
                loaded = await in_thread(self._load, "config")
            except GpushareError as error:
                self._unreadable = True
                self._news.publish(ConfigUnreadable(str(error)))
                self._keep(str(error))
            else:
                if self._unreadable:
                    self._news.publish(ConfigReadable())
                self._unreadable = False
                self._use(loaded)


def _left(before: Plan, devices: Iterable[Gpu]) -> Plan:
    """Return a plan without the units of absent GPUs; `devices` are the present GPUs."""
    present = {gpu.uuid: gpu for gpu in devices}
    resources = tuple(replace(resource, units=_units_of(present, resource)) for resource in before.resources)
    by_claim = {uuid: each for uuid, each in before.by_claim.items() if uuid in present}
    return replace(before, resources=resources, by_claim=by_claim)


def _units_of(present: Mapping[str, Gpu], resource: Resource) -> Units:
    """Return the units of a resource on the GPUs in `present`, which is by UUID."""
    by_gpu = resource.units.by_gpu.items()
    return Units({present[gpu.uuid]: units for gpu, units in by_gpu if gpu.uuid in present})

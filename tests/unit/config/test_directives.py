"""Tests of `gpushare_plugin.config.directives`: what the labels of a node ask for."""

from pathlib import Path

import pytest

from gpushare_plugin.config.directives import CONFIG, PARTITIONING, PLACEMENT, SCHEDULE, shared_through_mps
from gpushare_plugin.config.effective import EffectiveConfig
from gpushare_plugin.config.schema.sections import Config, Sharing
from gpushare_plugin.config.sources.choice import Configs
from gpushare_plugin.config.sources.labelled import load_effective_config
from gpushare_plugin.sharing.isolation.mps import MpsNeeds, UnderMps
from gpushare_plugin.sharing.plan import plan
from tests.nodes import a_node
from tests.unit.sharing.settings import GPU_MEM, memory, only, settings, time_slicing

NODE = a_node(40960, 40960)
SLICES = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
MEMORY = "version: v1\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem, unit: 2GiB}]}}\n"


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    """Return two named configs, of which `slices` is the default."""
    (tmp_path / "slices").write_text(SLICES)
    (tmp_path / "memory").write_text(MEMORY)
    return Configs(directory=tmp_path, default="slices")


def in_force(configs: Configs, labels: dict[str, str]) -> tuple[Sharing, tuple[str, ...]]:
    """Return how GPUs are shared under these labels, and the notices; there must be no problem."""
    loaded = load_effective_config(labels, configs)
    assert not loaded.problems
    assert loaded.config is not None
    return loaded.config.sharing, loaded.notices


def named(configs: Configs, name: str) -> Sharing:
    """Return how GPUs are shared by a config alone."""
    config = configs.load(name).config
    assert config is not None
    return config.sharing


def test_a_node_without_labels_gets_the_default_config(configs: Configs) -> None:
    """A node without labels gets the default config, and nothing is told."""
    assert in_force(configs, {}) == (named(configs, "slices"), ())


def test_a_label_chooses_a_config(configs: Configs) -> None:
    """The node label of NVIDIA's config-manager names the config."""
    assert in_force(configs, {CONFIG: "memory"}) == (named(configs, "memory"), ())


def test_a_label_that_names_a_missing_config_is_refused(configs: Configs) -> None:
    """A wrong name is a problem of the settings, with the names there are; at the start it counts as none."""
    loaded = load_effective_config({CONFIG: "memry"}, configs)
    (line,) = loaded.lines(loaded.problems)
    assert 'found no config "memry"; there are memory, slices' in line
    starting = load_effective_config({CONFIG: "memry"}, configs, starting=True)
    assert starting.config == configs.load("slices").config
    assert "memry" in starting.notices[0]


@pytest.mark.parametrize("value", ["default", "topology"])
def test_exclusive_schedules_mean_whole_gpus(configs: Configs, value: str) -> None:
    """Aliyun's labels for whole GPUs end every sharing of the default config."""
    assert in_force(configs, {SCHEDULE: value}) == (Sharing(), ())


@pytest.mark.parametrize(("value", "told"), [("share", 0), ("cgpu", 1), ("core_mem", 1)])
def test_shared_schedules_mean_memory(configs: Configs, value: str, told: int) -> None:
    """Aliyun's labels for shared GPUs mean memory units, as the config has them; what is not done is told."""
    sharing, notices = in_force(configs, {SCHEDULE: value})
    default = Config.model_validate({"sharing": {"memory": {"resources": [{"name": "aliyun.com/gpu-mem"}]}}})
    assert sharing == default.sharing
    assert len(notices) == told
    own = Configs(directory=configs.directory, default="memory")
    assert in_force(own, {SCHEDULE: value})[0] == named(configs, "memory")


@pytest.mark.parametrize("isolation", ["mps", "hami-core"])
def test_core_mem_offers_compute_where_something_limits_it(configs: Configs, isolation: str) -> None:
    """ACK's label for memory and compute lets containers request both, if the config has an isolation that limits."""
    (configs.directory or Path()).joinpath("limited").write_text(
        f"version: v1\nsharing: {{memory: {{resources: [{{name: aliyun.com/gpu-mem, isolation: {isolation}}}]}}}}\n"
    )
    own = Configs(directory=configs.directory, default="limited")
    sharing, notices = in_force(own, {SCHEDULE: "core_mem"})
    assert sharing.memory is not None
    assert [(each.isolation, each.compute) for each in sharing.memory.resources] == [((isolation,), "requested")]
    assert notices == ()


def test_core_mem_without_an_isolation_offers_no_compute_and_says_what_to_set(configs: Configs) -> None:
    """Where nothing limits compute, none is offered, and the warning says what to set."""
    sharing, (notice,) = in_force(configs, {SCHEDULE: "core_mem"})
    assert sharing.memory is not None
    assert [each.compute for each in sharing.memory.resources] == ["proportional"]
    assert notice == (
        "node label ack.node.gpu.schedule=core_mem: aliyun.com/gpu-core.percentage is not offered, because nothing "
        "limits compute; set isolation to mps, driver+mps or hami-core in sharing.memory.resources"
    )


def test_labels_that_agree_are_no_news(configs: Configs) -> None:
    """Two labels that ask for the same are followed without a word."""
    assert in_force(configs, {CONFIG: "memory", SCHEDULE: "share"}) == (named(configs, "memory"), ())


def test_labels_that_disagree_are_told(configs: Configs) -> None:
    """A named config goes before Aliyun's label, and the label that is not followed is told."""
    sharing, (notice,) = in_force(configs, {CONFIG: "slices", SCHEDULE: "share"})
    assert sharing == named(configs, "slices")
    assert notice == (
        "node labels disagree: node label ack.node.gpu.schedule=share requests sharing by memory, "
        "but node label nvidia.com/device-plugin.config=slices takes precedence"
    )


def test_labels_for_mps_share_gpus_by_memory_or_by_slices(configs: Configs) -> None:
    """ACK's label shares all GPUs by memory under MPS; nos' keeps the slices of the settings, and asks for some."""
    sharing, notices = in_force(configs, {SCHEDULE: "mps"})
    assert sharing.memory is not None
    assert [(each.name, each.isolation) for each in sharing.memory.resources] == [("aliyun.com/gpu-mem", ("mps",))]
    assert notices == ()
    sharing, (notice,) = in_force(configs, {PARTITIONING: "mps"})
    assert sharing == named(configs, "slices")
    assert "sharing.mps.sizes" in notice


def partitioned(configs: Configs, labels: dict[str, str], default: str = "") -> tuple[EffectiveConfig, tuple[str, ...]]:
    """Return what is in force where slices can be made as pods request them."""
    (configs.directory or Path()).joinpath("slices").write_text(default or SLICES)
    loaded = load_effective_config(labels, configs, partitioning=True)
    assert loaded.effective is not None
    return loaded.effective, loaded.notices


def test_a_partitioned_node_shares_in_no_other_way(configs: Configs) -> None:
    """Nos' label delegates all GPUs of the node; whatever else the config shares is not shared there."""
    effective, notices = partitioned(configs, {PARTITIONING: "mps"})
    assert (effective.partitioning, effective.config.sharing, notices) == ("mps", Sharing(), ())
    assert partitioned(configs, {})[0].partitioning is None


def test_slices_of_the_config_stay_as_they_are_configured(configs: Configs) -> None:
    """They are fixed: the label picks them, as without partitioning."""
    fixed = "version: v1\nsharing: {mps: {sizes: [{slices: [{size: 10gb, count: 2}]}]}}\n"
    effective, notices = partitioned(configs, {PARTITIONING: "mps"}, fixed)
    assert (effective.partitioning, notices) == (None, ())
    assert effective.config.sharing.mps is not None


@pytest.mark.parametrize("labels", [{CONFIG: "memory"}, {SCHEDULE: "share"}, {SCHEDULE: "default"}])
def test_any_other_label_goes_before_partitioning(configs: Configs, labels: dict[str, str]) -> None:
    """The first label that is present decides, and the other is told, also where whole GPUs are requested."""
    effective, (notice,) = partitioned(configs, labels | {PARTITIONING: "mps"})
    assert effective.partitioning is None
    assert (
        "nos.nebuly.com/gpu-partitioning=mps requests slices under MPS as pods request them, but node label" in notice
    )


def test_the_label_for_partitioning_is_told_with_a_remedy_if_partitioning_is_off(configs: Configs) -> None:
    """People who come from nos see what to turn on."""
    _, (notice,) = in_force(configs, {PARTITIONING: "mps"})
    assert notice.endswith("start gpushare run with --partitioning (chart: partitioning.enabled)")


def test_the_label_for_cgpu_is_handed_on_and_changes_no_setting(configs: Configs) -> None:
    """ACK's label that its kernel module stands aside is handed on, and is no matter of the settings."""
    config = Config.model_validate({"sharing": named(configs, "slices")})
    assert load_effective_config({}, configs).effective == EffectiveConfig(config)
    disabled = load_effective_config({"cgpu.disable.isolation": "true"}, configs)
    assert disabled.effective == EffectiveConfig(config, cgpu_disabled=True)


@pytest.mark.parametrize("labels", [{SCHEDULE: "mig"}, {PARTITIONING: "mig"}])
def test_labels_that_are_not_served_are_told(configs: Configs, labels: dict[str, str]) -> None:
    """Labels that ask for what is not there yet leave the settings alone and are told."""
    sharing, (notice,) = in_force(configs, labels)
    assert sharing == named(configs, "slices")
    assert "the config is unchanged" in notice


@pytest.mark.parametrize("value", ["binpack", "spread"])
def test_the_label_for_the_placement_goes_before_the_config(configs: Configs, value: str) -> None:
    """Aliyun's label for the placement goes before the config, whichever was chosen."""
    sharing, notices = in_force(configs, {CONFIG: "memory", PLACEMENT: value})
    assert sharing.memory is not None
    assert [each.placement for each in sharing.memory.resources] == [value]
    assert notices == ()


def test_the_label_for_the_placement_is_told_if_no_gpu_is_shared_by_memory(configs: Configs) -> None:
    """A placement changes nothing, and is told, where no GPU is shared by memory."""
    sharing, (notice,) = in_force(configs, {PLACEMENT: "spread"})
    assert sharing == named(configs, "slices")
    assert "has no effect" in notice


@pytest.mark.parametrize("label", [SCHEDULE, PARTITIONING, PLACEMENT])
def test_an_unknown_value_of_a_label_is_told(configs: Configs, label: str) -> None:
    """A misspelt value changes nothing, and the notice has what there is."""
    sharing, (notice,) = in_force(configs, {label: "spred"})
    assert sharing == named(configs, "slices")
    assert f"{label}=spred is unknown and has no effect; expected one of " in notice


@pytest.mark.parametrize(
    ("label", "value", "told"),
    [
        (SCHEDULE, "mig", "gpu-partitioning=mig instead"),
        (SCHEDULE, "cgpu", "node labels disagree"),
        (PARTITIONING, "mig", "start gpushare run with --partitioning"),
        (PARTITIONING, "mps", "sharing.mps.sizes"),
        ("cgpu.disable.isolation", "rubbish", "expected one of true, false"),
    ],
)
def test_a_label_that_is_not_followed_is_told_whichever_label_decides(
    configs: Configs, label: str, value: str, told: str
) -> None:
    """A label that another one goes before asks in vain, too."""
    _, notices = in_force(configs, {CONFIG: "slices", label: value})
    assert [told in notice for notice in notices] == [True]


def test_a_config_with_mistakes_does_not_keep_a_node_from_starting(configs: Configs, tmp_path: Path) -> None:
    """Live it is refused and the settings in force stay; at start the default holds, and the mistake is told."""
    (tmp_path / "broken").write_text("sharing: {memory: 7}")
    assert load_effective_config({CONFIG: "broken"}, configs).problems
    started = load_effective_config({CONFIG: "broken"}, configs, starting=True)
    assert started.config is not None
    assert started.config.sharing == named(configs, "slices")
    assert not started.problems
    assert ["cannot be used" in notice for notice in started.notices] == [True]


def test_the_label_for_mps_shares_all_gpus_by_memory_under_mps() -> None:
    """Whatever the file shares, the label means aliyun.com/gpu-mem under MPS on every GPU."""
    config = shared_through_mps(settings(sharing=time_slicing({"name": "nvidia.com/gpu", "replicas": 2})))
    assert config == settings(sharing=memory(isolation="mps", compute="unlimited"))
    decided = plan(EffectiveConfig(config), NODE)
    resource = only(decided)
    assert (resource.name, len(resource.units)) == (GPU_MEM, 80)
    assert decided.mps == MpsNeeds(dict.fromkeys((gpu.uuid for gpu in NODE.cards), UnderMps(None)))


def test_the_label_for_mps_leaves_all_other_settings() -> None:
    """Unit, placement and flags are no matter of the label."""
    config = settings(
        flags={"mpsRoot": "/srv/mps"}, sharing=memory(unit="256MiB", placement="spread", devices=[0], isolation="none")
    )
    assert shared_through_mps(config) == settings(
        flags={"mpsRoot": "/srv/mps"},
        sharing=memory(unit="256MiB", placement="spread", isolation="mps", compute="unlimited"),
    )


@pytest.mark.parametrize(
    ("entry", "compute"),
    [
        ({}, "unlimited"),
        ({"compute": "proportional"}, "proportional"),
        ({"compute": 40}, 40),
        ({"isolation": "mps"}, "proportional"),
        ({"isolation": "hami-core"}, "proportional"),
    ],
)
def test_the_label_for_mps_shares_compute_unless_the_config_limits_compute(
    entry: dict[str, object], compute: object
) -> None:
    """ACK isolates memory by this label and not compute; what the config says of compute goes before."""
    memory_sharing = shared_through_mps(settings(sharing=memory(**entry))).sharing.memory
    assert memory_sharing is not None
    assert [each.compute for each in memory_sharing.resources] == [compute]

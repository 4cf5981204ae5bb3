"""What is told of the difference between two configs."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.config.difference import difference
from gpushare_plugin.config.loading.load import Loaded
from gpushare_plugin.config.schema.sections import Config

MEMORY = "sharing: {memory: {resources: [%s]}}"
SLICED = "sharing: {timeSlicing: {resources: [%s]}}"


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("version: v1", "flags: {}", []),
        ("flags: {migStrategy: none}", "flags: {migStrategy: mixed}", ["flags.migStrategy: none -> mixed"]),
        ("{}", "flags: {gdsEnabled: true}", ["flags.gdsEnabled: false -> true"]),
        ("{}", "flags: {nvidiaDevRoot: /dev root}", ['flags.nvidiaDevRoot: nothing -> "/dev root"']),
        (
            "flags: {plugin: {deviceListStrategy: envvar}}",
            "flags: {plugin: {deviceListStrategy: [cdi-cri, envvar]}}",
            ["flags.plugin.deviceListStrategy: [envvar] -> [cdi-cri, envvar]"],
        ),
        ("health: {goodProbes: 3}", "health: {ignoredXids: all}", ["health.ignoredXids: [] -> all"]),
        ("{}", "health: {probeSeconds: 0.5}", ["health.probeSeconds: 5.0 -> 0.5"]),
        (
            MEMORY % "{name: a.io/m, unit: 1GiB}",
            MEMORY % "{name: a.io/m, unit: 2GiB, devices: [0]}",
            [
                "sharing.memory.resources[0].unit: GiB -> 2GiB",
                "sharing.memory.resources[0].devices: all -> [0]",
            ],
        ),
        (
            MEMORY % "{name: a.io/m}",
            MEMORY % "{name: a.io/m, isolation: mps, compute: 50, frameworkHints: true}",
            [
                "sharing.memory.resources[0].isolation: none -> mps",
                "sharing.memory.resources[0].compute: proportional -> 50",
                "sharing.memory.resources[0].frameworkHints: false -> true",
            ],
        ),
        (
            "sharing: {mps: {sizes: [{slices: [{size: 10gb, count: 2}]}]}}",
            "sharing: {mps: {sizes: [{slices: [{size: 10gb}, {size: 20gb}]}]}}",
            ["sharing.mps.sizes[0].slices[0].count: 2 -> 1", "sharing.mps.sizes[0].slices[1]: added"],
        ),
        (
            "{}",
            "hamiCore: {libraryDirectory: /opt/hami}",
            ["hamiCore.libraryDirectory: /usr/local/vgpu -> /opt/hami"],
        ),
        ("{}", MEMORY % "{name: a.io/m}", ["sharing.memory: added"]),
        (
            SLICED % "{name: gpu, replicas: 2}",
            MEMORY % "{name: a.io/m}",
            ["sharing.timeSlicing: removed", "sharing.memory: added"],
        ),
        (
            MEMORY % "{name: a.io/m, devices: 1}",
            MEMORY % "{name: a.io/m, devices: 1}, {name: a.io/n, devices: 1}",
            ["sharing.memory.resources[1]: added"],
        ),
        (
            "resources: {gpus: [{pattern: 'A*', name: a}]}",
            "resources: {gpus: []}",
            ["resources.gpus[0]: removed"],
        ),
    ],
)
def test_every_changed_setting_is_told_by_its_path(
    load_text: Callable[..., Loaded], old: str, new: str, lines: list[str]
) -> None:
    """Effective settings are compared, so spelling out a default is no change."""
    before, after = load_text(old).config, load_text(new).config
    assert before is not None
    assert after is not None
    assert difference(before, after) == lines
    assert len(difference(after, before)) == len(lines)


devices = st.sampled_from(["all", 1, 2, [0], [0, 1]])
memory = st.fixed_dictionaries(
    {"name": st.sampled_from(["a.io/m", "a.io/n"])},
    optional={"unit": st.sampled_from(["GiB", "1024MiB", "2GiB"]), "devices": devices},
)
xids = st.just("all") | st.lists(st.integers(1, 3), max_size=2)
settings = st.fixed_dictionaries(
    {},
    optional={
        "flags": st.fixed_dictionaries(
            {}, optional={"nvidiaDevRoot": st.text(st.characters(exclude_characters="\0")).map("/{}".format)}
        ),
        "resources": st.fixed_dictionaries({"gpus": st.lists(st.just({"pattern": "*", "name": "gpu"}), max_size=2)}),
        "sharing": st.fixed_dictionaries(
            {}, optional={"memory": st.fixed_dictionaries({"resources": st.lists(memory, min_size=1, max_size=2)})}
        ),
        "health": st.fixed_dictionaries({}, optional={"ignoredXids": xids, "probeSeconds": st.floats(0.5, 2)}),
    },
).map(lambda data: Config.model_validate(data, by_alias=True))


@given(settings, settings)
def test_differences_are_told_exactly_between_configs_that_differ(old: Config, new: Config) -> None:
    """No change goes untold, none is made up, and each is one line."""
    lines = difference(old, new)
    assert (lines == []) == (old == new)
    assert all(len(line.splitlines()) == 1 for line in lines)

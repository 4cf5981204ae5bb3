"""Settings from a file and overrides: what is right loads, what is wrong is refused with its place."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import ConfigError, Problem
from gpushare_plugin.config.loading.load import Loaded, Override, dump, load
from gpushare_plugin.config.schema.sections import AllDevices, Config, DeviceCount, DeviceList, MemoryUnit

Load = Callable[..., Loaded]
LinesOf = Callable[..., list[str]]


def config(loaded: Loaded) -> Config:
    """Give the config of settings that must be right."""
    assert loaded.lines(loaded.problems) == []
    assert loaded.config is not None
    return loaded.config


# ---------------------------------------------------------------------- what is right


def test_a_node_without_a_file_shares_every_gpu_by_memory() -> None:
    """No file means GiB units of the usual name, on all GPUs."""
    loaded = load(None)
    sharing = config(loaded).sharing
    assert sharing.memory is not None
    [entry] = sharing.memory.resources
    assert (entry.name, entry.unit, entry.devices, entry.placement) == (
        "aliyun.com/gpu-mem",
        MemoryUnit(1024),
        AllDevices(),
        "binpack",
    )
    assert (sharing.time_slicing, sharing.mps) == (None, None)
    place = loaded.places.describe(("sharing", "memory", "resources", 0, "unit"))
    assert place == "without a config file: sharing.memory.resources[0].unit"


def test_a_start_without_a_file_loads_no_yaml() -> None:
    """Starting without a file does not pay for reading one."""
    program = (
        "import sys; from gpushare_plugin.config.loading.load import load; load(None); sys.exit('yaml' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("text", ["version: v1", "{}", '{"version": "v1"}', "version: v1\nflags:\nsharing:\n"])
def test_a_file_without_sharing_advertises_whole_gpus(load_text: Load, text: str) -> None:
    """A file says what is shared, and one that says nothing shares nothing, as for NVIDIA's plugin."""
    sharing = config(load_text(text)).sharing
    assert (sharing.time_slicing, sharing.mps, sharing.memory) == (None, None, None)


NVIDIA_SAMPLES = {
    "flags": """
version: v1
flags:
  migStrategy: "none"
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: "envvar"
    deviceIDStrategy: "uuid"
""",
    "mixed MIG": """
version: v1
flags:
  migStrategy: "mixed" # as in the second file of the chart's example
  failOnInitError: true
  nvidiaDriverRoot: "/"
  plugin:
    passDeviceSpecs: false
    deviceListStrategy: envvar
    deviceIDStrategy: uuid
""",
    "time slicing": """
version: v1
sharing:
  timeSlicing:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
""",
    "time slicing, renamed": """
version: v1
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 10
""",
    "time slicing of MIG": """
version: v1
flags: {migStrategy: mixed}
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 2}
    - {name: nvidia.com/mig-1g.5gb, replicas: 2}
    - {name: nvidia.com/mig-2g.10gb, replicas: 2}
    - {name: nvidia.com/mig-3g.20gb, replicas: 2}
    - {name: nvidia.com/mig-7g.40gb, replicas: 2}
""",
    "MPS": """
version: v1
sharing:
  mps:
    resources:
    - name: nvidia.com/gpu
      replicas: 10
""",
    "strategies as a list": """
version: v1
flags:
  plugin:
    deviceListStrategy: [envvar, cdi-cri]
""",
    "shared with feature discovery": """
version: v1
flags:
  useNodeFeatureAPI: null
  gfd: {oneshot: false, noTimestamp: false, sleepInterval: 60s, outputFile: /etc/labels, machineTypeFile: /sys/name}
resources:
  gpus: [{pattern: "*A100*", name: a100}]
  mig: [{pattern: "1g.*", name: mig-small}]
""",
    "everything": """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  mpsRoot: /mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: ""
  gdrcopyEnabled: true
  gdsEnabled: yes
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: volume-mounts
    deviceIDStrategy: index
    cdiAnnotationPrefix: example.com/
    nvidiaCTKPath: /opt/nvidia-ctk
    containerDriverRoot: /host
    sharedDevicesAllocationPolicy: packed
resources: {gpus: [{pattern: "*", name: gpu}], migs: []}
sharing:
  timeSlicing:
    resources:
    - {name: gpu, rename: nvidia.com/gpu.shared, devices: [0, 1:0, "2"], replicas: 10}
    - {name: gpu, rename: one, devices: 1, replicas: 2}
imex: {channelIDs: [], required: false}
""",
}


@pytest.mark.parametrize("sample", NVIDIA_SAMPLES.values(), ids=NVIDIA_SAMPLES.keys())
def test_nvidias_files_work_unchanged(load_text: Load, sample: str) -> None:
    """Every form its documentation shows and its schema knows is accepted, and survives being written out."""
    settings = config(load_text(sample))
    assert config(load_text(dump(settings))) == settings


def test_keys_of_nvidias_files_mean_what_nvidia_means(load_text: Load) -> None:
    """Names without a domain are nvidia.com's, indices become references, and `1:0` is a MIG instance."""
    settings = config(load_text(NVIDIA_SAMPLES["everything"]))
    assert settings.flags.plugin.device_list_strategy == ("volume-mounts",)
    assert settings.flags.nvidia_dev_root is None
    assert settings.resources.gpus[0].matches("NVIDIA A100-SXM4-40GB")
    assert settings.sharing.time_slicing is not None
    some, one = settings.sharing.time_slicing.resources
    assert (some.name, some.rename, some.replicas) == ("nvidia.com/gpu", "nvidia.com/gpu.shared", 10)
    assert some.devices == DeviceList(("0", "1:0", "2"))
    assert (one.rename, one.devices) == ("nvidia.com/one", DeviceCount(1))


def test_the_published_five_replicas_work_once_mended(lines_of: LinesOf, load_text: Load) -> None:
    """The sample an article printed, with tabs and without its section, is explained; mended, it shares five ways."""
    assert lines_of("version: v1\n\t- name:\n  \treplicas: 5\n") == [
        (
            "gpushare.yaml:2:1: found a tab; indent with spaces. If the indentation was lost, this config was meant "
            "(its values were not checked): "
            "{version: v1, sharing: {timeSlicing: {resources: [{name: …, replicas: 5}]}}}"
        )
    ]
    mended = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 5\n"
    time_slicing = config(load_text(mended)).sharing.time_slicing
    assert time_slicing is not None
    assert [(entry.name, entry.replicas) for entry in time_slicing.resources] == [("nvidia.com/gpu", 5)]


def test_replicas_are_advertised_under_the_name_asked_for(load_text: Load) -> None:
    """`rename` wins over `renameByDefault`, which adds `.shared`; without either the name stays."""
    text = """
sharing:
  timeSlicing:
    renameByDefault: {rename}
    resources:
    - {{name: nvidia.com/gpu, replicas: 2}}
    - {{name: nvidia.com/mig-1g.5gb, rename: small, replicas: 2}}
"""
    for rename, names in (
        ("true", ["nvidia.com/gpu.shared", "nvidia.com/small"]),
        ("false", ["nvidia.com/gpu", "nvidia.com/small"]),
    ):
        section = config(load_text(text.format(rename=rename))).sharing.time_slicing
        assert section is not None
        assert [section.advertised_name(entry) for entry in section.resources] == names


def test_memory_can_be_shared_several_ways_on_one_node(load_text: Load) -> None:
    """Each entry has its own name, unit, devices and placement."""
    memory = config(
        load_text("""
sharing:
  memory:
    resources:
    - {name: aliyun.com/gpu-mem, unit: GiB, devices: [0], placement: binpack}
    - {name: aliyun.com/gpu-mem-small, unit: 256MiB, devices: 1, placement: spread}
""")
    ).sharing.memory
    assert memory is not None
    assert [(str(entry.unit), entry.devices, entry.placement) for entry in memory.resources] == [
        ("GiB", DeviceList(("0",)), "binpack"),
        ("256MiB", DeviceCount(1), "spread"),
    ]


# ---------------------------------------------------------------------- flags over environment over file


def test_an_override_replaces_the_value_of_the_file(load_text: Load) -> None:
    """What the file says instead, right or wrong, no longer counts; the place is what it was set with."""
    loaded = load_text(
        "flags: {migStrategy: Nonsense, gdsEnabled: true}",
        Override(("flags", "migStrategy"), "mixed", "--mig-strategy"),
        Override(
            ("flags", "plugin", "deviceListStrategy"), ("envvar", "cdi-cri"), "DEVICE_LIST_STRATEGY (environment)"
        ),
    )
    flags = config(loaded).flags
    assert (flags.mig_strategy, flags.gds_enabled) == ("mixed", True)
    assert flags.plugin.device_list_strategy == ("envvar", "cdi-cri")
    assert loaded.places.describe(("flags", "migStrategy")) == "--mig-strategy: flags.migStrategy"


def test_an_override_fills_an_empty_section(load_text: Load) -> None:
    """`flags:` with nothing below it is a section left out."""
    option = Override(("flags", "plugin", "deviceIDStrategy"), "index", "--device-id-strategy")
    assert config(load_text("flags:\n", option)).flags.plugin.device_id_strategy == "index"
    assert config(load_text("flags: {plugin: }\n", option)).flags.plugin.device_id_strategy == "index"


def test_overrides_apply_without_a_file() -> None:
    """The default is memory sharing still."""
    settings = config(load(None, [Override(("flags", "failOnInitError"), value=False, source="--fail-on-init-error")]))
    assert settings.flags.fail_on_init_error is False
    assert settings.sharing.memory is not None


def test_a_wrong_override_is_reported_with_its_source(lines_of: LinesOf) -> None:
    """Options and variables are named after what stands in the file."""
    assert lines_of(
        "version: v2",
        Override(("flags", "migStrategy"), "mixde", "--mig-strategy"),
        Override(("flags", "plugin", "deviceIDStrategy"), "UUID", "DEVICE_ID_STRATEGY (environment)"),
    ) == [
        'gpushare.yaml:1:10: version: found "v2"; allowed: v1',
        '--mig-strategy: flags.migStrategy: found "mixde"; did you mean "mixed"? Allowed: none, single, mixed',
        (
            "DEVICE_ID_STRATEGY (environment): flags.plugin.deviceIDStrategy: "
            'found "UUID"; did you mean "uuid"? Allowed: uuid, index'
        ),
    ]


def test_an_override_does_not_hide_what_is_wrong_around_it(lines_of: LinesOf) -> None:
    """A section that is none, or misspelt, is reported although an option sets a value of it."""
    option = Override(("flags", "plugin", "passDeviceSpecs"), value=True, source="--pass-device-specs")
    for text in ("flags: 5", "flags: []", "flags: {plugin: 5}"):
        [line] = lines_of(text, option)
        assert "; allowed: a section with the keys" in line
    assert [line.split(";")[0] for line in lines_of("flag: {gdsEnabled: 1}", option)] == [
        'gpushare.yaml:1:1: flag: unknown key "flag"',
        "gpushare.yaml:1:20: flag.gdsEnabled: found 1",
    ]


# ---------------------------------------------------------------------- names advertised twice


@pytest.mark.parametrize(
    ("text", "second", "first"),
    [
        (
            "sharing:\n  memory:\n    resources:\n    - name: a.io/x\n    - name: a.io/x\n",
            "5:13: sharing.memory.resources[1].name",
            "4:13: sharing.memory.resources[0].name",
        ),
        (
            (
                "sharing:\n  timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 2}]}\n"
                "  memory: {resources: [{name: nvidia.com/gpu.shared}]}\n"
            ),
            "3:31: sharing.memory.resources[0].name",
            "2:59: sharing.timeSlicing.resources[0].name",
        ),
        (
            (
                "sharing:\n  timeSlicing: {resources: [{name: gpu, replicas: 2}]}\n"
                "  mps: {resources: [{name: gpu, rename: nvidia.com/gpu, replicas: 2}]}\n"
            ),
            "3:41: sharing.mps.resources[0].rename",
            "2:36: sharing.timeSlicing.resources[0].name",
        ),
        (
            (
                "sharing:\n  memory: {resources: [{name: nvidia.com/gpu-10gb}]}\n"
                "  mps: {sizes: [{slices: [{size: 10gb}]}, {slices: [{size: 10gb}]}]}\n"
            ),
            "2:31: sharing.memory.resources[0].name",
            "3:34: sharing.mps.sizes[0].slices[0].size",
        ),
    ],
)
def test_a_name_advertised_twice_is_reported_with_both_places(
    lines_of: LinesOf, text: str, second: str, first: str
) -> None:
    """Names are compared as pods will ask for them, over all ways of sharing."""
    [line] = lines_of(text)
    assert line.startswith(f"gpushare.yaml:{second}: found ")
    assert f"already used at gpushare.yaml:{first}; choose another name" in line


def test_a_name_that_becomes_too_long_is_refused(lines_of: LinesOf) -> None:
    """`.shared` counts too."""
    name = "x" * 60
    text = f"""
resources: {{gpus: [{{pattern: "*", name: {name}}}]}}
sharing: {{timeSlicing: {{renameByDefault: true, resources: [{{name: {name}, replicas: 2}}]}}}}
"""
    [line] = lines_of(text)
    assert "sharing.timeSlicing.resources[0].name: with renameByDefault: found" in line


# ---------------------------------------------------------------------- all at once

ALL_WRONG = """\
version: v2
flags:
  migStrategy: Mixed
  deviceIDStrategy: index
  plugin:
    deviceListStrategy: [envvar, cdi]
resources:
  gpus:
  - {patern: "*A100*", name: a100}
sharing:
  timeslicing:
    resources:
    - name: nvidia.com/gpus
      replicas: 1
    - name: a100
      devices: [x]
      replica: 4
  memory:
    resources:
    - name: aliyun.com/gpu-mem
      unit: GB
    - name: aliyun.com/gpu-mem
      placment: binpack
"""


def test_all_problems_are_reported_at_once_in_the_order_of_the_file(lines_of: LinesOf) -> None:
    """Below misspelt keys, beside wrong values and within one entry: nothing hides anything else."""
    assert [line.removeprefix("gpushare.yaml:").split(";")[0] for line in lines_of(ALL_WRONG)] == [
        '1:10: version: found "v2"',
        '3:16: flags.migStrategy: found "Mixed"',
        '4:3: flags.deviceIDStrategy: unknown key "deviceIDStrategy"',
        '6:34: flags.plugin.deviceListStrategy[1]: found "cdi"',
        '9:6: resources.gpus[0].patern: unknown key "patern"',
        '11:3: sharing.timeslicing: unknown key "timeslicing"',
        '13:13: sharing.timeslicing.resources[0].name: found "nvidia.com/gpus"',
        "14:17: sharing.timeslicing.resources[0].replicas: found 1",
        '16:17: sharing.timeslicing.resources[1].devices[0]: found "x"',
        '17:7: sharing.timeslicing.resources[1].replica: unknown key "replica"',
        '21:13: sharing.memory.resources[0].unit: found "GB"',
        (
            '22:13: sharing.memory.resources[1].name: found "aliyun.com/gpu-mem", already used at '
            "gpushare.yaml:20:13: sharing.memory.resources[0].name"
        ),
        '23:7: sharing.memory.resources[1].placment: unknown key "placment"',
    ]


def test_a_config_with_mistakes_serves_nothing(load_text: Load) -> None:
    """All mistakes of the file are reported first; only what has none is compared with the GPUs."""
    loaded = load_text(ALL_WRONG)
    assert (loaded.config, loaded.notices) == (None, ())


def test_a_problem_with_the_gpus_is_reported_at_its_place_in_the_file(load_text: Load) -> None:
    """Problems found later point into the file as it is, a setting that is not given at the section around it."""
    loaded = load_text("""\
sharing:
  memory:
    resources:
    - {name: a.io/one, devices: [7]}
    - {name: a.io/two}
""")
    later = [Problem(("sharing", "memory", "resources", index, "devices"), "matches no GPU") for index in (1, 0)]
    assert loaded.lines(later) == [
        "gpushare.yaml:4:24: sharing.memory.resources[0].devices: matches no GPU",
        "gpushare.yaml:5:7: sharing.memory.resources[1].devices: matches no GPU",
    ]


def test_a_name_from_a_wrong_entry_is_not_called_misspelt(lines_of: LinesOf) -> None:
    """A slip in `resources` is one problem, not one more for every use of the name."""
    text = """
resources: {gpus: [{patern: "*A100*", name: [a100]}, {pattern: 5, name: a10}]}
sharing: {timeSlicing: {resources: [{name: a10, replicas: 2}, {name: gpu, replicas: 2}]}}
"""
    assert [line.split(" ")[1] for line in lines_of(text)] == [
        "resources.gpus[0].patern:",
        "resources.gpus[0].name:",
        "resources.gpus[1].pattern:",
    ]


@pytest.mark.parametrize("text", ["a: [", "", "- a", "a: 1\n---\nb: 2"])
def test_a_text_that_is_no_settings_is_not_compared_with_gpus(load_text: Load, text: str) -> None:
    """Settings that nobody made have no problems with GPUs; options are still checked."""
    loaded = load_text(text, Override(("flags", "migStrategy"), "x", "--mig-strategy"))
    assert loaded.config is None
    assert [problem.path for problem in loaded.problems] == [(), ("flags", "migStrategy")]


def test_a_missing_file_is_an_error_of_its_own(tmp_path: Path) -> None:
    """Settings that cannot be read are not settings that are wrong."""
    with pytest.raises(ConfigError, match="there is no such file"):
        load(tmp_path / "absent.yaml")


# ---------------------------------------------------------------------- accepted, not served


def test_settings_that_change_nothing_are_named(load_text: Load) -> None:
    """NVIDIA's files stay as they are; what of them is not served is said."""
    loaded = load_text("""
flags: {mpsProtocol: 3, useNodeFeatureAPI: true, gfd: {oneshot: true}}
resources: {mig: [{pattern: "*", name: small}]}
driverLimits: {additionalMemory: 1GiB}
sharing: {mps: {}, memory: {resources: [{name: a.io/m, compute: unlimited}]}}
""")
    config(loaded)
    memory = "sharing.memory.resources[0].compute"
    flags = ("flags.gfd", "flags.useNodeFeatureAPI", "flags.mpsProtocol")
    for key in (*flags, "driverLimits", "resources.migs", "sharing.mps", memory):
        assert any(key in notice for notice in loaded.notices)
    assert load_text("flags: {migStrategy: mixed}\nresources: {migs: [{pattern: '*', name: small}]}").notices == ()


def test_a_section_dra_without_keys_is_named(load_text: Load) -> None:
    """YAML takes a section whose keys are all comments for nothing, and nothing gives no GPU by claim."""
    (notice,) = load_text("dra:\n  # devices: [0]\n").notices
    assert notice.startswith("dra is empty and has no effect; write `dra: {}`")
    assert load_text("dra: {}").notices == load_text("version: v1").notices == ()


def test_a_protocol_of_mps_without_mps_is_named_where_the_file_sets_it(load_text: Load) -> None:
    """One option or variable is for all configs of a cluster, also for those without MPS; a file is for itself."""
    without, name = "sharing: {memory: {resources: [{name: a.io/m, isolation: [driver, none]}]}}", "flags.mpsProtocol"
    (notice,) = load_text(f"flags: {{mpsProtocol: 3}}\n{without}").notices
    assert notice.startswith(f"{name} has no effect, unless a label of the node asks for MPS")
    assert load_text(without, Override(("flags", "mpsProtocol"), 3, "MPS_PROTOCOL (environment)")).notices == ()
    for isolation in ("mps", "driver+mps", "[driver, mps, none]"):
        text = f"flags: {{mpsProtocol: 3}}\n{without.replace('[driver, none]', isolation)}"
        assert load_text(text).notices == ()


BY_MPS = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
ON_SEVERAL = "sharing: {memory: {resources: [{name: a.io/m, isolation: mps, allowMultiGPUShares: true}]}}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hamiCore: {libraryDirectory: /opt/vgpu}", "hamiCore has no effect: no entry of sharing has hami-core"),
        (
            f"flags: {{mpsProtocol: 3, mpsRoot: /{'x' * 66}}}\n{BY_MPS}",
            "flags.mpsRoot is too long for flags.mpsProtocol 3, with which MPS cannot start: the path of",
        ),
        (
            f"flags: {{mpsProtocol: 3}}\n{ON_SEVERAL}",
            "sharing.memory.resources[0].allowMultiGPUShares has no effect: with flags.mpsProtocol 3",
        ),
    ],
)
def test_a_setting_that_another_one_makes_idle_is_named(load_text: Load, text: str, words: str) -> None:
    """Two settings that are right one by one, and together not what people expect, cause a warning."""
    (notice,) = load_text(text).notices
    assert notice.startswith(words)


def test_settings_that_go_together_cause_no_warning(load_text: Load) -> None:
    """The longest path that protocol 3 allows, the library where an entry uses it, and protocol 2."""
    hami = "sharing: {memory: {resources: [{name: a.io/m, isolation: hami-core}]}}"
    for text in (
        f"flags: {{mpsProtocol: 3, mpsRoot: /{'x' * 65}}}\n{BY_MPS}",
        ON_SEVERAL,
        f"hamiCore: {{libraryDirectory: /opt/vgpu}}\n{hami}",
    ):
        assert load_text(text).notices == ()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "apiVersion: v1\nkind: ConfigMap\ndata:\n  mine: |\n    version: v1\n",
            '2:1: kind: found a Kubernetes manifest of kind "ConfigMap", but a config is expected; {}'.format(
                "give only the text below data.mine, as a file of its own"
            ),
        ),
        (
            "apiVersion: v1\nkind: Pod\n",
            '2:1: kind: found a Kubernetes manifest of kind "Pod", but a config is expected; check the path',
        ),
        (
            "image: x\nconfig:\n  map:\n    mine:\n      version: v1\n",
            "2:1: config: found Helm values, but a config is expected; {}".format(
                "give only what stands below config.map.mine, as a file of its own"
            ),
        ),
        (
            "config: {name: own}\n",
            "1:1: config: found Helm values, but a config is expected; these have none in config.map",
        ),
    ],
    ids=["ConfigMap", "Pod", "values", "values without configs"],
)
def test_a_manifest_or_values_in_place_of_a_config_are_one_problem(lines_of: LinesOf, text: str, line: str) -> None:
    """The problem says which part is the config; the keys of a whole manifest or of all values are not all reported."""
    assert lines_of(text) == [f"gpushare.yaml:{line}"]

"""Every mistake in a config file, one by one: where it is said to be, what was found, what is right."""
# ruff: noqa: E501 - a table of what people write and what they read about it

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from gpushare_plugin.config.loading.load import Loaded

MEMORY = "sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, %s}]}}"
SLICED = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, %s}]}}"
UUID = "b1028956-cfa2-0990-bf4a-5da9abb51763"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "1:1: the file is empty"),
        ("version: v1beta1", '1:10: version: found "v1beta1"'),
        ("version: 1", "1:10: version: found 1; allowed: v1"),
        ("Version: v1", '1:1: Version: unknown key "Version"; did you mean "version"? Allowed here: version, flags,'),
        ("sharing: {timeslicing: {resources: [{name: gpu, replicas: 2}]}}", '1:11: sharing.timeslicing: unknown key "timeslicing"; did you mean "timeSlicing"? Allowed here: timeSlicing, mps, memory'),
        ("sharing: {GPUShare: {}}", '1:11: sharing.GPUShare: unknown key "GPUShare". Allowed here: timeSlicing, mps, memory'),
        ("sharing: {mps: {resources: [{name: nvidia.com/gpu, memoryGB: 2, replicas: 2}]}}", 'sharing.mps.resources[0].memoryGB: unknown key "memoryGB", of nebuly\'s plugin; use sharing.mps.sizes, such as slices: [{size: 2gb, count: 2}]. Allowed here: name,'),
        ("sharing: {mps: {resources: [{name: nvidia.com/gpu, memoryGB: 10, replicas: 2}]}}", "use sharing.mps.sizes, such as slices: [{size: 10gb, count: 2}]. Allowed here: name,"),
        ("sharing: {mps: {resources: [{name: nvidia.com/gpu, memoryGB: {}, replicas: 2}]}}", "use sharing.mps.sizes, such as slices: [{size: 2gb, count: 2}]. Allowed here: name,"),
        ("colour: blue", '1:1: colour: unknown key "colour". Allowed here: version, flags, resources, sharing, imex'),
        ("flags: {mig_strategy: none}", '1:9: flags.mig_strategy: unknown key "mig_strategy"; did you mean "migStrategy"?'),
        ("flags: {deviceIDStrategy: uuid}", '1:9: flags.deviceIDStrategy: unknown key "deviceIDStrategy"; it belongs in flags.plugin.'),
        ("memory: {}", '1:1: memory: unknown key "memory"; it belongs in sharing.'),
        ("flags: {plugin: {deviceIdStrategy: uuid}}", 'did you mean "deviceIDStrategy"?'),
        ("flags: {migStrategy: Mixed}", '1:22: flags.migStrategy: found "Mixed"; did you mean "mixed"? Allowed: none, single, mixed'),
        ("flags: {migStrategy: true}", "1:22: flags.migStrategy: found true; allowed: none, single, mixed"),
        ('flags: {failOnInitError: "true"}', '1:26: flags.failOnInitError: found "true"; allowed: true or false, without quotes'),
        ("flags: {failOnInitError: 1}", "1:26: flags.failOnInitError: found 1; allowed: true or false"),
        ("flags: {deviceDiscoveryStrategy: tegra}", '1:34: flags.deviceDiscoveryStrategy: found "tegra", but only NVML is supported; allowed: auto, nvml'),
        ("flags: {deviceDiscoveryStrategy: NVML}", 'did you mean "nvml"? Allowed: auto, nvml'),
        ('flags: {mpsRoot: "/a\\0b"}', r'1:18: flags.mpsRoot: found "/a\u0000b"; allowed: an absolute path; the character U+0000'),
        ('flags: {plugin: {containerDriverRoot: "/a\\0b"}}', r'1:39: flags.plugin.containerDriverRoot: found "/a\u0000b"; allowed: an absolute path; the'),
        ("flags: {nvidiaDriverRoot: run/nvidia}", '1:27: flags.nvidiaDriverRoot: found "run/nvidia"; did you mean "/run/nvidia"? Allowed: an absolute path'),
        ("flags: []", "1:1: flags: found an empty list; allowed: a section with the keys migStrategy"),
        ("flags: {gfd: {oneShot: true}}", 'did you mean "oneshot"?'),
        ("flags: {gfd: {sleepInterval: []}}", "1:15: flags.gfd.sleepInterval: found an empty list; allowed: a duration"),
        ("flags: {plugin: {deviceListStrategy: env}}", '1:38: flags.plugin.deviceListStrategy: found "env"'),
        ("flags: {plugin: {deviceListStrategy: [envvar, cdi_cri]}}", '1:47: flags.plugin.deviceListStrategy[1]: found "cdi_cri"; did you mean "cdi-cri"?'),
        ("flags: {plugin: {deviceListStrategy: []}}", "flags.plugin.deviceListStrategy: found an empty list; allowed: one of envvar"),
        ("flags: {plugin: {cdiKind: gpu}}", '1:27: flags.plugin.cdiKind: found "gpu"; allowed: <vendor>/<class>, such as nvidia.com/gpu'),
        ("flags: {plugin: {cdiAnnotationPrefix: CDI}}", '1:39: flags.plugin.cdiAnnotationPrefix: found "CDI"; allowed: the start of an annotation key'),
        ("imex: {channelIDs: [0]}", "1:8: imex.channelIDs: found [0], but gpushare gives containers no IMEX channels; remove it. Allowed: []"),
        ("imex: {required: true}", "1:18: imex.required: found true, but gpushare gives containers no IMEX channels; remove it. Allowed: false"),
        ("imex: {channelIDs: [true]}", "1:21: imex.channelIDs[0]: found true; allowed: a whole number"),
        ("health: 5", "1:9: health: found 5; allowed: a section with the keys ignoredXids, watchedXids"),
        ("health: {ignoredXid: all}", '1:10: health.ignoredXid: unknown key "ignoredXid"; did you mean "ignoredXids"?'),
        ("health: {ignoredXids: ALL}", '1:23: health.ignoredXids: found "ALL"; did you mean "all"? Allowed: all, or a list of XIDs'),
        ("health: {ignoredXids: 63}", "1:23: health.ignoredXids: found 63; allowed: all, or a list of XIDs"),
        ("health: {watchedXids: }", "1:10: health.watchedXids: found nothing; allowed: all, or a list of XIDs"),
        ("health: {watchedXids: [48, 0]}", "1:28: health.watchedXids[1]: found 0; allowed: all, or a list of XIDs, whole numbers from 1 to"),
        ("health: {watchedXids: [48, many]}", '1:28: health.watchedXids[1]: found "many"; allowed: all, or a list of XIDs'),
        ('health: {watchedXids: ["48"]}', '1:24: health.watchedXids[0]: found "48"; allowed: all, or a list of XIDs'),
        ("health: {watchedXids: [true]}", "1:24: health.watchedXids[0]: found true; allowed: all, or a list of XIDs"),
        ("health: {resetXids: all}", '1:21: health.resetXids: found "all"; allowed: a list of XIDs'),
        ("health: {resetXids: [-1]}", "1:22: health.resetXids[0]: found -1; allowed: an XID, a whole number from 1 to 999999"),
        ("health: {goodProbes: 0}", "1:22: health.goodProbes: found 0; allowed: a whole number of 1 or more"),
        ("health: {probeSeconds: 0}", "1:24: health.probeSeconds: found 0; allowed: a number of seconds, more than 0"),
        ("health: {probeSeconds: 1e999}", "1:24: health.probeSeconds: found inf; allowed: a number of seconds, more than 0"),
        ('health: {rescanSeconds: "30"}', '1:25: health.rescanSeconds: found "30"; allowed: a number of seconds, more than 0, without quotes'),
        ("health: {rescanSeconds: 30s}", '1:25: health.rescanSeconds: found "30s"; allowed: a number of seconds, more than 0'),
        ("resources: {gpus: [{name: a}]}", "1:20: resources.gpus[0].pattern: missing; allowed: text, where * matches anything"),
        ("resources: {gpus: [{pattern: '*', name: 'a b'}]}", '1:41: resources.gpus[0].name: found "a b"; did you mean "a-b"? Allowed: <domain>/<name>, such as nvidia.com/gpu.shared'),
        ("sharing: {timeSlicing: {resources: [{name: gpu, rename: EXAMPLE.com/x, replicas: 2}]}}", 'rename: found "EXAMPLE.com/x"; did you mean "example.com/x"?'),
        ("sharing: {timeslicing: {}}", "1:11: sharing.timeslicing: unknown key"),
        ("resources: {mig: [{pattern: '*'}]}", "1:19: resources.mig[0].name: missing"),
        ("resources: {gpu: []}", 'unknown key "gpu"; did you mean "gpus"? Allowed here: gpus, migs'),
        ("sharing: {timeSlicing: }", "1:11: sharing.timeSlicing: found nothing; allowed: a section with resources, indented below this key"),
        ("sharing: {timeSlicing: {}}", "1:11: sharing.timeSlicing.resources: missing; allowed: a list of at least one of"),
        ("sharing: {timeSlicing: {resources: []}}", "1:25: sharing.timeSlicing.resources: found an empty list; allowed: a list of at least one"),
        ("sharing: {timeSlicing: {resources: {name: a}}}", "1:25: sharing.timeSlicing.resources: found a section; allowed: a list of at least one"),
        ("sharing: {timeSlicing: {resources: [nvidia.com/gpu]}}", '1:37: sharing.timeSlicing.resources[0]: found "nvidia.com/gpu"; allowed: a section with the keys name'),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 1}]}}", "1:70: sharing.timeSlicing.resources[0].replicas: found 1; allowed: a whole number of 2 or more"),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu}]}}", "1:37: sharing.timeSlicing.resources[0].replicas: missing; allowed: a whole number of 2 or more"),
        ('sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: "2"}]}}', '1:62: sharing.mps.resources[0].replicas: found "2"; allowed: a whole number from 2 to 48, without quotes'),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}", "1:51: sharing.mps.resources[0].replicas: found 49; allowed: a whole number from 2 to 48"),
        ("sharing: {mps: {resources: [{name: mig-1g.5gb, replicas: 2}]}}", '1:36: sharing.mps.resources[0].name: found "nvidia.com/mig-1g.5gb", MIG instances, but MPS shares only whole GPUs; use sharing.timeSlicing'),
        ("{resources: {migs: [{pattern: '*', name: small}]}, sharing: {mps: {resources: [{name: small, replicas: 2}]}}}", 'found "nvidia.com/small", MIG instances'),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, isolation: mps}]}}", '1:73: sharing.timeSlicing.resources[0].isolation: found "mps", which is not time slicing: use sharing.mps; allowed: none, hami-core, driver'),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, isolation: hami_core}]}}", 'found "hami_core"; did you mean "hami-core"? Allowed: none, hami-core, driver, or a list of them in order'),
        (MEMORY % "isolation: MPS", 'found "MPS"; did you mean "mps"? Allowed: none, mps, hami-core, driver, driver+mps, or a list of them in order'),
        (MEMORY % "isolation: [driver, MPS]", '1:79: sharing.memory.resources[0].isolation[1]: found "MPS"; did you mean "mps"? Allowed: none, mps, hami-core, driver, driver+mps'),
        (MEMORY % "isolation: [driver, msp]", '1:79: sharing.memory.resources[0].isolation[1]: found "msp"; did you mean "mps"?'),
        (MEMORY % "isolation: [hami, none]", '1:71: sharing.memory.resources[0].isolation[0]: found "hami"; did you mean "hami-core"?'),
        (MEMORY % "isolation: [driver, 3]", "1:79: sharing.memory.resources[0].isolation[1]: found 3; allowed: none, mps"),
        (MEMORY % "isolation: [[driver]]", "1:71: sharing.memory.resources[0].isolation[0]: found a list; allowed: none, mps"),
        (MEMORY % "isolation: [[driver], none]", "1:71: sharing.memory.resources[0].isolation[0]: found a list; allowed: none, mps"),
        (MEMORY % "isolation: [{driver: 1}, none]", "1:71: sharing.memory.resources[0].isolation[0]: found a section; allowed: none, mps"),
        ("sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, isolation: [driver, mps]}]}}", '1:82: sharing.timeSlicing.resources[0].isolation[1]: found "mps", which is not time slicing'),
        (MEMORY % "isolation: mps+driver", 'found "mps+driver"; did you mean "driver+mps"?'),
        (MEMORY % "isolation: 'driver, none'", 'found "driver, none"; did you mean the list [driver, none]? Allowed: none, mps, hami-core, driver, driver+mps, or a list of them in order'),
        (MEMORY % "isolation: 'driver, nothing'", 'found "driver, nothing"; allowed: none, mps'),
        ('flags: {mpsProtocol: "3"}', '1:22: flags.mpsProtocol: found "3"; allowed: 2, 3, without quotes'),
        ("flags: {mpsProtocol: v3}", 'flags.mpsProtocol: found "v3"; allowed: 2, 3'),
        (MEMORY % "isolation: []", "found an empty list; allowed: none, mps, hami-core, driver, driver+mps, or a list of them in order"),
        (MEMORY % "isolation: [driver, driver]", '1:79: sharing.memory.resources[0].isolation[1]: found "driver" twice; an isolation is listed once'),
        (MEMORY % "isolation: [none, driver]", '1:77: sharing.memory.resources[0].isolation[1]: found "driver" after "none", which every node counts as having, so that "driver" is never chosen; put "none" at the end'),
        (MEMORY % "isolation: [hami-core, none]", 'found "none" after "hami-core"'),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 2, isolation: none}]}}", 'found "none"; allowed: mps, driver, driver+mps, or a list of them in order'),
        (MEMORY % "isolation: driver, burst: 1", "found 1; allowed: a number more than 1, or a size such as 20GiB"),
        (MEMORY % "isolation: driver, burst: '1.5'", 'found "1.5"; allowed: a number more than 1, or a size such as 20GiB, without quotes'),
        (MEMORY % "isolation: driver, burst: 20gb", 'found "20gb"; allowed: a number more than 1'),
        (MEMORY % "isolation: mps, burst: 1.5", "found 1.5, but isolation is mps, and only the driver lets a container use free memory beyond its share"),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 2, burst: 20GiB}]}}", "found 20GiB, but isolation is mps"),
        ("driverLimits: {additionalMemory: 0}", "1:34: driverLimits.additionalMemory: found 0; to add nothing, leave this key out. Allowed: GiB, MiB or a multiple"),
        ("driverLimits: {additionalMemory: 0MiB}", 'found "0MiB"; to add nothing, leave this key out. Allowed: GiB, MiB or a multiple of one such as 2GiB or 256MiB'),
        ("driverLimits: {additionalMemory: 0.0 gb}", 'found "0.0 gb"; to add nothing, leave this key out'),
        ("driverLimits: {additionalMemory: 512}", 'found 512; did you mean "512MiB"?'),
        ("driverLimits: {additionalMemory: 512Mi}", 'found "512Mi"; did you mean "512MiB"?'),
        ("driverLimits: {additionalMemory: 0.5 GB}", 'found "0.5 GB"; did you mean "512MiB"?'),
        ("driverLimits: {additionalMemory: 10%}", 'found "10%"; allowed: GiB, MiB or a multiple'),
        ("dra: {driver: gpu.nvidia.com}", '1:15: dra.driver: found "gpu.nvidia.com", the name of NVIDIA\'s DRA driver: two DRA drivers of one name take sockets'),
        ("dra: {driver: GPU_Share.example.com}", '1:15: dra.driver: found "GPU_Share.example.com"; did you mean "gpu-share.example.com"? Allowed: a name of up to 63'),
        (f"dra: {{driver: {'a' * 64}}}", f'1:15: dra.driver: found "{"a" * 64}"; did you mean "{"a" * 63}"? Allowed: a name of up to 63'),
        ("dra: {driver: 5}", "1:15: dra.driver: found 5; allowed: a name of up to 63"),
        ('dra: {driver: "..."}', '1:15: dra.driver: found "..."; allowed: a name of up to 63'),
        ("dra: {devices: 0}", "1:16: dra.devices: found 0; allowed: all, a count of 1 or more, or a list of indices and UUIDs"),
        ("dra: {devices: none}", '1:16: dra.devices: found "none"; allowed: all, a count'),
        ("dra: {default: 8}", '1:16: dra.default: found 8; did you mean "8MiB"? Allowed: GiB, MiB or a multiple'),
        ("dra: {default: 0}", "1:16: dra.default: found 0; for all of the memory, leave this key out. Allowed: GiB, MiB or"),
        ("dra: {default: 0GiB}", 'found "0GiB"; for all of the memory, leave this key out'),
        ("dra: {default: 8Gi}", '1:16: dra.default: found "8Gi"; did you mean "8GiB"?'),
        ("dra: {isolation: mps}", '1:7: dra.isolation: unknown key "isolation"'),
        ("dra: {enabled: true}", "1:1: dra: found Helm values, but a config is expected"),
        ("dra: [0]", "1:1: dra: found a list; allowed: a section with the keys driver, default, devices"),
        (MEMORY % "isolation: mps, compute: 50%", 'found "50%"; did you mean 50, without quotes? Allowed: proportional, unlimited, requested, or a percentage from 1 to 100'),
        (MEMORY % "isolation: mps, compute: '50'", 'found "50"; did you mean 50, without quotes? Allowed: proportional'),
        (MEMORY % "isolation: mps, compute: 0", "found 0; allowed: proportional, unlimited, requested, or a percentage from 1 to 100"),
        (MEMORY % "isolation: mps, compute: proportionate", 'did you mean "proportional"?'),
        (MEMORY % "isolation: mps, compute: true", "found true; allowed: proportional, unlimited"),
        (MEMORY % "frameworkHints: 1", "found 1; allowed: true or false"),
        ("sharing: {mps: {sizes: [{slices: [{size: 10GiB}]}]}}", '1:42: sharing.mps.sizes[0].slices[0].size: found "10GiB"; did you mean "10gb"? Allowed: a size such as 10gb'),
        ("sharing: {mps: {sizes: [{slices: [{size: big}]}]}}", 'found "big"; allowed: a size such as 10gb'),
        ("sharing: {mps: {sizes: [{slices: [{size: 10gb}, {size: 10gb, count: 2}]}]}}", "1:26: sharing.mps.sizes[0].slices: found 10gb twice; a size is listed once, with its count"),
        ("sharing: {mps: {sizes: [{slices: [{size: 1gb}], compute: equally}]}}", 'sharing.mps.sizes[0].compute: found "equally"; did you mean "equal"? Allowed: proportional, equal, unlimited, or a percentage from 1 to 100'),
        (MEMORY % "isolation: mps, compute: equal", 'found "equal"; allowed: proportional, unlimited, requested, or a percentage from 1 to 100'),
        ("sharing: {mps: {sizes: [{slices: []}]}}", "sharing.mps.sizes[0].slices: found an empty list; allowed: a list of at least one of a section with the keys size, count"),
        ("hamiCore: {libraryDirectory: vgpu}", 'found "vgpu"; did you mean "/vgpu"?'),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: yes}]}}", "found true; allowed: a whole number of 2 or more"),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2.5}]}}", "found 2.5; allowed: a whole number of 2 or more"),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpus, replicas: 2}]}}", '1:44: sharing.timeSlicing.resources[0].name: found "nvidia.com/gpus"; did you mean "nvidia.com/gpu"? Allowed: nvidia.com/gpu, nvidia.com/mig-<g>g.<m>gb, or a name from resources'),
        ("sharing: {timeSlicing: {resources: [{name: Nvidia.com/gpu, replicas: 2}]}}", 'did you mean "nvidia.com/gpu"?'),
        (SLICED % "devices: none", '1:82: sharing.timeSlicing.resources[0].devices: found "none"; allowed: all, a count'),
        (SLICED % f"devices: [0, gpu-{UUID}]", f'1:86: sharing.timeSlicing.resources[0].devices[1]: found "gpu-{UUID}"; did you mean "GPU-{UUID}"?'),
        (SLICED % "devices: [0, 0]", 'sharing.timeSlicing.resources[0].devices: found "0" twice'),
        (SLICED % "rename: kubernetes.io/gpu", '1:81: sharing.timeSlicing.resources[0].rename: found "kubernetes.io/gpu"'),
        (SLICED % "replica: 2", 'unknown key "replica"; did you mean "replicas"? Allowed here: name, rename, devices, replicas'),
        (MEMORY % "unit: GB", '1:65: sharing.memory.resources[0].unit: found "GB"; did you mean "GiB"? Allowed: GiB, MiB or a multiple of one such as 2GiB or 256MiB'),
        (MEMORY % "unit: 0MiB", 'found "0MiB"; did you mean "MiB"?'),
        (MEMORY % "placement: bin-pack", '1:70: sharing.memory.resources[0].placement: found "bin-pack"; did you mean "binpack"? Allowed: binpack, spread'),
        (MEMORY % "allowMultiGPUShares: true", "1:80: sharing.memory.resources[0].allowMultiGPUShares: found true, but isolation is none, with which shares on several GPUs are always admitted; remove this key, or set isolation to mps"),
        (MEMORY % "compute: requested", "1:68: sharing.memory.resources[0].compute: found requested, but isolation is none, which does not limit compute, so aliyun.com/gpu-core.percentage cannot be offered; set isolation to mps, driver+mps or hami-core, or leave compute out"),
        ("sharing: {memory: {resources: [{name: aliyun.com/gpu-core.percentage}]}}", '1:39: sharing.memory.resources[0].name: found "aliyun.com/gpu-core.percentage", which stands for compute'),
        (MEMORY % "replicas: 2", '1:59: sharing.memory.resources[0].replicas: unknown key "replicas"; it belongs in sharing.timeSlicing.resources[] or sharing.mps.resources[]. Allowed here: name, unit, devices, placement, isolation, burst, compute, allowMultiGPUShares, frameworkHints'),
        ("sharing: {memory: {resources: [{name: nvidia.com/gpumem, unit: GiB}]}}", "1:64: sharing.memory.resources[0].unit: found a unit of GiB, but pods of HAMi request nvidia.com/gpumem in MiB: a request of 3000 would mean 3000 units of GiB. Set unit: MiB, or advertise the units under another name, such as aliyun.com/gpu-mem, and change the requests (3000 MiB are 3 units of GiB)"),
        ("sharing: {memory: {resources: [{name: nvidia.com/gpumem}]}}", "1:32: sharing.memory.resources[0]: found a unit of GiB, but pods of HAMi request nvidia.com/gpumem in MiB"),
        ("sharing: {memory: {resources: [{name: volcano.sh/vgpu-memory, unit: 256MiB}]}}", "sharing.memory.resources[0].unit: found a unit of 256MiB, but pods of Volcano request volcano.sh/vgpu-memory in MiB: a request of 3000 would mean 3000 units of 256MiB. Set unit: MiB, or advertise the units under another name, such as aliyun.com/gpu-mem, and change the requests (3000 MiB are 12 units of 256MiB)"),
        ("sharing: {memory: {resources: [{name: gpu-mem}]}}", '1:39: sharing.memory.resources[0].name: found "gpu-mem"; did you mean "aliyun.com/gpu-mem"? Allowed: an extended-resource name'),
        ("sharing: {memory: {resources: [{name: aliyun.com/gpu-memory}]}}", 'found "aliyun.com/gpu-memory"; did you mean "aliyun.com/gpu-mem"?'),
        ("sharing: {memory: {resources: [{name: 5}]}}", "found 5; allowed: an extended-resource name <domain>/<name>, such as aliyun.com/gpu-mem"),
        ("sharing: {memory: {resources: [{unit: GiB}]}}", "1:32: sharing.memory.resources[0].name: missing; allowed: an extended-resource name"),
    ],
)  # fmt: skip
def test_a_single_mistake_is_reported_once_with_its_place(
    lines_of: Callable[..., list[str]], text: str, line: str
) -> None:
    """One mistake gives one line: where, what was found, what is allowed, and the nearest right one."""
    [found] = lines_of(text)
    assert found.startswith("gpushare.yaml:1:")
    assert line in found
    if line[:2] == "1:":
        assert found.removeprefix("gpushare.yaml:").startswith(line)


MANY = 2000


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("".join(f"unknown{number}: 1\n" for number in range(MANY)), MANY - 100),
        ("flags: {plugin: {" + ", ".join(f"unknown{number}: 1" for number in range(MANY)) + "}}", MANY - 100),
        ("health: {ignoredXids: [" + ", ".join("x" * MANY) + "]}", MANY - 100),
        ("sharing: {memory: {resources: [" + ", ".join(["{name: aliyun.com/gpu-mem}"] * MANY) + "]}}", MANY - 101),
        (
            "sharing: {memory: {resources: [" + ", ".join(["{nam: aliyun.com/gpu-mem}"] * MANY) + "]}}",
            MANY - 1,
        ),  # 99 of the first 100 names are taken
        (MEMORY % f"isolation: [{', '.join(['driver'] * MANY)}]", 1),  # no item is read then
        ("".join(f"flags{number}: 1\n" * 2 for number in range(MANY)), 1),  # no more is read then
    ],
)
def test_mistakes_beyond_a_hundred_are_counted_on_one_line(
    lines_of: Callable[..., list[str]], text: str, left_out: int
) -> None:
    """Beyond a hundred lines there is one more, which says how many mistakes at least are not told."""
    lines = lines_of(text)
    assert len(lines) == 101
    assert lines[-1] == f"gpushare.yaml: at least {left_out:,} more mistakes are not shown; fix these first"


def test_a_hundred_mistakes_are_told_whole(lines_of: Callable[..., list[str]]) -> None:
    """Up to the limit nothing is left out, nor said to be."""
    lines = lines_of("".join(f"unknown{number}: 1\n" for number in range(100)))
    assert len(lines) == 100
    assert all("unknown key" in line for line in lines)


def test_messages_do_not_grow_with_the_number_of_right_names(lines_of: Callable[..., list[str]]) -> None:
    """A wrong name is told with twenty right ones and how many more there are, never with hundreds."""
    given = ", ".join(f"{{pattern: x{number}, name: nvidia.com/g{number:03}}}" for number in range(300))
    wrong = ", ".join(f"{{name: nvidia.com/x{number}, replicas: 2}}" for number in range(90))
    lines = lines_of(f"{{resources: {{gpus: [{given}]}}, sharing: {{timeSlicing: {{resources: [{wrong}]}}}}}}")
    assert len(lines) == 90
    assert all("nvidia.com/g019 and 280 more, nvidia.com/mig-" in line for line in lines)


def test_the_schema_is_gone_through_once(load_text: Callable[..., Loaded]) -> None:
    """A hundred unknown keys cost little more than one: what the schema has is kept, and messages look it up."""

    def calls(count: int) -> int:
        """Count the calls of Python that so many mistakes take."""
        made = 0

        def count_call(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal made
            made += event == "call"

        text = "".join(f"unknown{number}: 1\n" for number in range(count))
        sys.setprofile(count_call)
        try:
            load_text(text)
        finally:
            sys.setprofile(None)
        return made

    calls(1)  # what is looked up once is looked up
    one, many, most = calls(1), calls(100), calls(2000)
    assert (many - one) / 99 < 450
    assert most - many < 1900 * 40

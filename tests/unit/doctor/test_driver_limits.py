"""Tests of what `gpushare doctor` says of driver limits, on nodes that have them and on nodes that lack one thing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare_plugin.base.files.lock import lock
from gpushare_plugin.base.memory import MIB
from gpushare_plugin.base.structs import replace
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.doctor.examination import DoctorReport, judged, read_node
from gpushare_plugin.doctor.node.diagnosis import Diagnosis
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import ConfigNeeds, EntryNeeds, needs_of
from gpushare_plugin.doctor.subjects.kubelet import PLUGIN_DIRECTORY
from gpushare_plugin.doctor.words import lines_of
from gpushare_plugin.driver_limits.exchange import (
    DEFAULT_ROOT,
    DriverLimitsRoot,
    DriverLimitsStatus,
    GpuStatus,
    LimitOrder,
)
from gpushare_plugin.gpus.exchange import write_message
from gpushare_plugin.testing.hosts import (
    DRIVER_LIMITS,
    DRIVER_LIMITS_OLD_TOOLKIT,
    GPUS,
    KUBEADM_CONTAINERD_1_7,
    KUBEADM_CONTAINERD_2,
    NODES,
    HostDescription,
    built,
    specification,
)
from gpushare_plugin.testing.nvml import DRIVER_WITH_LIMITS
from tests.unit.doctor.examining import CDI, ENVVAR, examined, shown, wrong_lines

SUBJECT = "driver limits"
WISHED = replace(ENVVAR, entries=(EntryNeeds(("driver", "none")),))
"""A config with `isolation: [driver, none]`."""
NEEDED = replace(ENVVAR, entries=(EntryNeeds(("driver",)),))
"""A config with `isolation: driver`."""
BY_CDI = replace(CDI, entries=NEEDED.entries)
BURST = replace(CDI, entries=(EntryNeeds(("driver",), bursts=True),))

SETTINGS = "/etc/nvidia-container-runtime/config.toml"
PARAMETERS = "/proc/driver/nvidia/params"
CGROUPS = "/sys/fs/cgroup"
WITHOUT_HOOK_ON_ONE = json.dumps(
    {
        **(document := json.loads(specification(driver=DRIVER_WITH_LIMITS, limits=True))),
        "devices": [
            {**device, "containerEdits": {}} if device["name"] in {"1", GPUS[1].uuid} else device
            for device in document["devices"]
        ],
    }
)
"""A specification whose device of the second GPU has no hook."""
NOT_PROVEN = "gpushare driver-limits has not proven yet that limits can be set on this GPU"
OFF = 'options nvidia NVreg_RegistryDwords="Other=1;RmMemacctMode=0"\n'
UUIDS = tuple(gpu.uuid for gpu in GPUS)
PROVEN = DriverLimitsStatus(gpus=tuple(GpuStatus(uuid=uuid, proven=True) for uuid in UUIDS))
"""The status of an agent that can set limits on every GPU."""
NOTHING = 'options nvidia NVreg_RegistryDwords="Other=1"\n'


def lines(report: DoctorReport) -> list[Diagnosis]:
    """Return the lines about driver limits."""
    return [line for line in report.lines if line.subject == SUBJECT]


def running(host: HostDescription, mode: int) -> HostDescription:
    """Return a node whose driver runs with a mode of accounting."""
    return host.edited(PARAMETERS, 'RegistryDwords: ""', f'RegistryDwords: "Other=1;RmMemacctMode={mode}"')


@contextmanager
def agent(
    folder: Path,
    *,
    status: DriverLimitsStatus | None = PROVEN,
    ordered: tuple[str, ...] = UUIDS,
    place: str = str(DEFAULT_ROOT),
) -> Iterator[None]:
    """Run something that looks like the agent on the node below `folder`, and a daemon that ordered limits from it."""
    root = DriverLimitsRoot(folder / place.removeprefix("/"))
    root.path.mkdir(parents=True)
    write_message(root.wanted, LimitOrder(gpus=ordered))
    if status is not None:
        write_message(root.status, status)
    with lock(root.lock):
        yield


@pytest.mark.parametrize("needs", [replace(BY_CDI, entries=WISHED.entries), BY_CDI], ids=["wished", "needed"])
def test_a_node_that_has_them_is_right(needs: ConfigNeeds, short_path: Path) -> None:
    """With driver 615, dmem and the hook of toolkit 1.20.1 in the specification, limits are set."""
    _, report = examined(DRIVER_LIMITS, short_path, needs)
    assert wrong_lines(report) == []
    assert [line.found for line in lines(report)] == ["by dmem, set by the hook apply-cuda-memory-limits"]


@pytest.mark.parametrize(
    ("host", "needs", "when"),
    [
        (DRIVER_LIMITS, BY_CDI, "and before that by the hook apply-cuda-memory-limits"),
        (DRIVER_LIMITS, NEEDED, "and before that by the hook apply-cuda-memory-limits"),
        (DRIVER_LIMITS_OLD_TOOLKIT, NEEDED, "some time after a container starts"),
        (
            DRIVER_LIMITS.edited(SETTINGS, 'mode = "auto"', 'mode = "legacy"'),
            NEEDED,
            "some time after a container starts",
        ),
        (
            DRIVER_LIMITS
            + HostDescription(
                {
                    SETTINGS: "[nvidia-container-runtime.modes.jit-cdi]\n"
                    'nvcdi-disable-hooks = ["apply-cuda-memory-limits"]\n'
                }
            ),
            NEEDED,
            "some time after a container starts",
        ),
        (DRIVER_LIMITS, BURST, "and before that by the hook apply-cuda-memory-limits"),
    ],
    ids=["hook of CDI", "hook just in time", "old toolkit", "legacy", "hook left out", "burst"],
)
def test_the_agent_sets_limits_where_it_runs(
    host: HostDescription, needs: ConfigNeeds, when: str, short_path: Path
) -> None:
    """The hook is not needed then; with the hook, limits begin before the container starts."""
    with agent(short_path):
        _, report = examined(host, short_path, needs)
    assert wrong_lines(report) == []
    assert [line.found for line in lines(report)] == [f"by dmem, set by the agent gpushare driver-limits, {when}"]


@pytest.mark.parametrize(
    ("status", "found"),
    [
        (DriverLimitsStatus(trouble="only root can set limits"), "only root can set limits"),
        (
            DriverLimitsStatus(gpus=(GpuStatus(uuid=UUIDS[0], reason="NVML says no"), PROVEN.gpus[1])),
            f"{UUIDS[0]}: NVML says no",
        ),
        (
            DriverLimitsStatus(gpus=(PROVEN.gpus[0], GpuStatus(uuid=UUIDS[1]))),
            f"{UUIDS[1]}: {NOT_PROVEN}",
        ),
        (DriverLimitsStatus(), f"{UUIDS[0]}: {NOT_PROVEN}; {UUIDS[1]}: {NOT_PROVEN}"),
        (None, f"{UUIDS[0]}: {NOT_PROVEN}; {UUIDS[1]}: {NOT_PROVEN}"),
    ],
    ids=["at all", "on a GPU", "not proven", "of no GPU", "no status"],
)
def test_the_troubles_of_the_agent_are_told(status: DriverLimitsStatus | None, found: str, short_path: Path) -> None:
    """An agent that runs and sets no limits is no agent, and neither is one that has not shown yet that it can."""
    with agent(short_path, status=status):
        _, report = examined(DRIVER_LIMITS, short_path, BY_CDI)
        root = HostRoot(short_path)
        wished = judged(read_node(root, WISHED, lambda _library: shown(DRIVER_WITH_LIMITS)), root)
    assert SUBJECT in {line.subject for line in wrong_lines(wished)}, "the daemon counts on an agent that runs"
    (line,) = wrong_lines(report)
    assert line.found == f"the agent gpushare driver-limits sets no limits: {found}"
    assert "the log of the pod of `gpushare driver-limits`" in (line.remedy or "")


def test_an_agent_without_an_order_is_not_judged(short_path: Path) -> None:
    """Until the daemon orders limits, nobody knows whether the agent can set them."""
    with agent(short_path, ordered=(), status=DriverLimitsStatus()):
        _, report = examined(DRIVER_LIMITS, short_path, NEEDED)
    (line,) = lines(report)
    assert line.judgement == "notLookedAt"
    assert "the daemon of gpushare has ordered no limits from it" in line.found


def test_the_agent_is_looked_for_in_the_root_of_driver_limits(short_path: Path) -> None:
    """Where agent and daemon exchange files elsewhere, doctor is told so by the same option."""
    elsewhere = replace(NEEDED, limits_root="/var/lib/limits")
    with agent(short_path, place="/var/lib/limits"):
        _, report = examined(DRIVER_LIMITS, short_path, elsewhere)
    assert "set by the agent" in lines(report)[0].found


def needs_by(sharing: object, folder: Path) -> ConfigNeeds:
    """Return what a config with this way of sharing needs."""
    file = folder / "config.json"
    file.write_text(json.dumps({"version": "v1", "sharing": sharing}))
    config = load(file).config
    assert config is not None
    return needs_of(config, None, folder)


def test_a_config_says_what_each_entry_needs(tmp_path: Path) -> None:
    """Each entry has its list of isolations, and `driver` means MPS, too, below `sharing.mps`."""
    needs = needs_by(
        {
            "memory": {
                "resources": [{"name": "a.b/c", "devices": [0], "isolation": ["driver", "mps", "none"], "burst": 1.5}]
            },
            "mps": {
                "resources": [{"name": "nvidia.com/gpu", "replicas": 2, "devices": [1], "isolation": ["driver", "mps"]}]
            },
        },
        tmp_path,
    )
    assert set(needs.entries) == {
        EntryNeeds(("driver", "mps", "none"), bursts=True),
        EntryNeeds(("driver+mps", "mps")),
    }
    assert needs.driver_limits
    assert not needs_by({"memory": {"resources": [{"name": "a.b/c"}]}}, tmp_path).driver_limits


@pytest.mark.parametrize("name", NODES)
def test_a_config_without_them_makes_no_line_wrong(name: str, short_path: Path) -> None:
    """A node without them has no line about them; a node that has them says that the config does not use them."""
    _, report = examined(NODES[name], short_path, ENVVAR)
    found = [(line.judgement, "not used by the config" in line.found) for line in lines(report)]
    assert found == ([("right", True)] if name.startswith("driver-limits") else [])


@pytest.mark.parametrize(
    ("host", "needs", "found", "remedy"),
    [
        (KUBEADM_CONTAINERD_2, NEEDED, "driver 580.95.05 has none", "driver.version). (b) let the config take"),
        (
            DRIVER_LIMITS,
            NEEDED,
            "the daemon sees hooks of CDI devices only",
            "(a) give GPUs by CDI, with `helm",
        ),
        (
            DRIVER_LIMITS,
            NEEDED,
            "gpushare driver-limits does not run",
            "(b) start the agent on this node: driverLimits.enabled=true and cluster.followPods=true",
        ),
        (DRIVER_LIMITS, BURST, "burst needs the agent gpushare driver-limits", "start the agent on this node"),
        (
            DRIVER_LIMITS.edited(f"{CGROUPS}/kubepods.slice/cgroup.controllers", " misc dmem", ""),
            BY_CDI,
            "the kubepods cgroup has the controllers cpuset cpu io memory hugetlb pids rdma, and not dmem",
            "subtree_control - - - - +dmem' > /etc/tmpfiles.d/gpushare-cgroup.conf && systemd-tmpfiles --create",
        ),
        (
            DRIVER_LIMITS_OLD_TOOLKIT,
            BY_CDI,
            "/run/cdi/nvidia.yaml has no apply-cuda-memory-limits",
            "1.18.1 now, to 1.20.1 or newer (NVIDIA's operator: from 26.7.1 on). Then run `",
        ),
        (
            DRIVER_LIMITS.without(f"{CGROUPS}/cgroup.controllers")
            + HostDescription(directories=(f"{CGROUPS}/memory",)),
            NEEDED,
            "control groups of version 1",
            "About cgroup v2). (b) let the config take another isolation on such nodes (isolation: [driver, none])",
        ),
        (
            DRIVER_LIMITS.without(f"{CGROUPS}/dmem.capacity").edited(f"{CGROUPS}/cgroup.controllers", " misc dmem", ""),
            NEEDED,
            "by which the driver counts memory (controllers: cpuset cpu",
            "CONFIG_CGROUP_MISC",
        ),
        (
            running(DRIVER_LIMITS, 1).edited(f"{CGROUPS}/cgroup.controllers", " misc", ""),
            NEEDED,
            "RmMemacctMode=1 in NVreg_RegistryDwords has the driver count memory by misc alone, a controller that the",
            "remove RmMemacctMode=1 from NVreg_RegistryDwords in the file of /etc/modprobe.d or the command line",
        ),
        (
            running(DRIVER_LIMITS, 2).edited(f"{CGROUPS}/cgroup.controllers", " dmem", ""),
            NEEDED,
            "RmMemacctMode=2 in NVreg_RegistryDwords has the driver count memory by dmem alone, a controller that the",
            "remove RmMemacctMode=2 from NVreg_RegistryDwords in the file of /etc/modprobe.d or the command line",
        ),
        (
            running(DRIVER_LIMITS, 2)
            .without(f"{CGROUPS}/dmem.capacity")
            .edited(f"{CGROUPS}/cgroup.controllers", " misc dmem", ""),
            NEEDED,
            "neither of the cgroup controllers dmem and misc",
            "and without cgroup_disable; remove RmMemacctMode from NVreg_RegistryDwords",
        ),
        (
            running(DRIVER_LIMITS, 0),
            NEEDED,
            "RmMemacctMode=0 in NVreg_RegistryDwords",
            "or the command line of the kernel that has it",
        ),
        (
            running(DRIVER_LIMITS, 0) + HostDescription({"/usr/lib/modprobe.d/zz.conf": OFF}),
            NEEDED,
            "turns the driver's accounting of memory off",
            "remove RmMemacctMode=0 from NVreg_RegistryDwords in /usr/lib/modprobe.d/zz.conf",
        ),
        (
            DRIVER_LIMITS + HostDescription({"/etc/modprobe.d/nvidia.conf": OFF}),
            WISHED,
            "in /etc/modprobe.d/nvidia.conf turns the accounting of the driver off at the next boot",
            "and reboot the node",
        ),
        (
            DRIVER_LIMITS_OLD_TOOLKIT.without("/run/cdi/nvidia.yaml"),
            BY_CDI,
            "write a CDI specification, and toolkit 1.18.1 has no apply-cuda-memory-limits",
            "1.18.1 now, to 1.20.1 or newer (NVIDIA's operator: from 26.7.1 on). Then start the daemon of gpushare",
        ),
        (
            DRIVER_LIMITS + HostDescription({"/run/cdi/nvidia.yaml": WITHOUT_HOOK_ON_ONE}),
            BY_CDI,
            f"/run/cdi/nvidia.yaml has no apply-cuda-memory-limits for nvidia.com/gpu={GPUS[1].uuid}",
            "Leave out the option --disable-hook",
        ),
    ],
    ids=[
        "old driver",
        "no CDI",
        "no agent",
        "burst without agent",
        "controller of pods",
        "old toolkit",
        "version 1",
        "no controller",
        "forced misc without misc",
        "forced dmem without dmem",
        "forced dmem without any",
        "turned off",
        "turned off by a file",
        "turned off later",
        "no specification and old toolkit",
        "no hook on one GPU",
    ],
)
def test_what_a_node_lacks_is_named_with_what_mends_it(
    host: HostDescription, needs: ConfigNeeds, found: str, remedy: str, short_path: Path
) -> None:
    """A node that lacks one thing has one wrong line about driver limits."""
    _, report = examined(host, short_path, needs)
    (line,) = [line for line in lines(report) if line.judgement == "wrong"]
    assert found in line.found
    assert remedy in (line.remedy or "")


OLDER = HostDescription({"/run/cdi/nvidia.yaml": specification(driver="580.95.05", limits=True)})


@pytest.mark.parametrize(
    ("host", "needs"),
    [
        (DRIVER_LIMITS.without("/run/cdi/nvidia.yaml"), BY_CDI),
        (DRIVER_LIMITS + OLDER, BY_CDI),
        (DRIVER_LIMITS, replace(BY_CDI, cdi_kind="example.com/gpu")),
    ],
    ids=["no specification", "of an older driver", "another kind"],
)
def test_a_specification_that_the_daemon_will_write_is_not_judged(
    host: HostDescription, needs: ConfigNeeds, short_path: Path
) -> None:
    """Nothing is wrong before the daemon starts: with toolkit 1.20.1 the daemon's own specification has the hook.

    Whoever follows the advice to give GPUs by CDI comes to this node, and must not be sent in a circle.
    """
    _, before = examined(host, short_path / "before", needs)
    assert wrong_lines(before) == []
    assert [line.judgement for line in lines(before)] == ["notLookedAt"]
    assert "the daemon will have the toolkit write one, with apply-cuda-memory-limits" in lines(before)[0].found
    folder = short_path / "after"
    with built(host, folder), lock(folder / f"{PLUGIN_DIRECTORY[1:]}/gpushare.lock"):
        root = HostRoot(folder)
        report = judged(read_node(root, needs, lambda _library: shown(DRIVER_WITH_LIMITS)), root)
    assert [line.subject for line in wrong_lines(report)] == ["CDI specifications", SUBJECT]
    assert "mend the line about CDI specifications first" in (wrong_lines(report)[1].remedy or "")


@pytest.mark.parametrize("host", [KUBEADM_CONTAINERD_2, DRIVER_LIMITS_OLD_TOOLKIT], ids=["driver", "toolkit"])
@pytest.mark.parametrize("instead", ["none", "mps"])
def test_a_config_with_another_isolation_is_served_without_them(
    host: HostDescription, instead: str, short_path: Path
) -> None:
    """With `isolation: [driver, none]` nothing is wrong; the line says what is taken, and what is missing.

    What brings driver limits is told below what is wrong, in a list of its own.
    """
    needs = replace(BY_CDI, entries=(EntryNeeds(("driver", instead)),))
    _, report = examined(host, short_path, needs)
    assert wrong_lines(report) == []
    (mps,) = [line for line in report.lines if line.subject == "MPS"]
    assert mps.judgement == ("notLookedAt" if instead == "mps" else "right")
    (line,) = lines(report)
    assert f"so the config takes the next isolation of its list: {instead}" in line.found
    assert line.found.startswith("no limits: ") is (instead == "none")
    assert ("with which nothing limits the memory of containers" in line.found) is (instead == "none")
    assert "upgrade" not in line.found
    assert line.improvement is not None
    assert "upgrade" in line.improvement
    assert "[driver, none]" not in line.improvement
    said = [*lines_of(report)]
    assert "What would give this node the first isolation of each list of the config:" in said
    assert said[-3:-1] == ["Then run gpushare doctor again.", ""]


def test_the_way_to_cdi_names_the_steps_that_follow(short_path: Path) -> None:
    """Whoever gives GPUs by CDI also needs a toolkit with the hook, and a specification that this toolkit made."""
    _, report = examined(DRIVER_LIMITS_OLD_TOOLKIT, short_path / "old", NEEDED)
    (line,) = [line for line in wrong_lines(report) if line.subject == SUBJECT]
    _, _, ways = (line.remedy or "").partition("(a) give GPUs by CDI")
    assert ". Then upgrade NVIDIA's container toolkit, 1.18.1 now, to 1.20.1 or newer" in ways
    assert "cdi generate" in ways
    programs = tuple(f"/usr/bin/nvidia-{name}" for name in ("ctk", "cdi-hook", "container-runtime"))
    bare = DRIVER_LIMITS_OLD_TOOLKIT.without(*programs, "/run/cdi/nvidia.yaml", "/var/lib/dpkg")
    _, report = examined(bare, short_path / "none", NEEDED)
    (line,) = [line for line in wrong_lines(report) if line.subject == SUBJECT]
    assert ". Then install NVIDIA's container toolkit 1.20.1 or newer" in (line.remedy or "")
    assert "upgrade NVIDIA's container toolkit" not in (line.remedy or "")


OLD = KUBEADM_CONTAINERD_2


@pytest.mark.parametrize(
    ("host", "isolations", "mps"),
    [
        (DRIVER_LIMITS, ("mps", "none"), "notLookedAt"),
        (DRIVER_LIMITS, ("driver", "mps", "none"), "right"),
        (DRIVER_LIMITS, ("driver+mps", "none"), "notLookedAt"),
        (OLD, ("driver", "mps", "none"), "notLookedAt"),
        (OLD, ("driver+mps", "none"), "right"),
        (OLD, ("none",), "right"),
    ],
)
def test_mps_is_judged_by_the_isolation_that_the_node_takes(
    host: HostDescription, isolations: tuple[str, ...], mps: str, short_path: Path
) -> None:
    """Where a list comes to MPS on a node, the daemon has to label it for MPS first; elsewhere MPS is not needed."""
    _, report = examined(host, short_path, replace(CDI, entries=(EntryNeeds(isolations),)))
    assert [line.judgement for line in report.lines if line.subject == "MPS"] == [mps]


def test_mps_is_not_needed_where_it_can_share_no_gpu(short_path: Path) -> None:
    """On a node whose GPUs are in MIG mode, and with a protocol that the driver lacks, a list goes on behind MPS."""
    entries = (EntryNeeds(("driver", "mps", "none")),)
    source = shown(OLD.files["/sys/module/nvidia/version"].strip())
    cards = tuple(replace(card, mig_enabled=True) for card in source.inventory.cards)
    source.inventory = replace(source.inventory, cards=cards)
    _, divided = examined(OLD, short_path / "divided", replace(CDI, entries=entries), source)
    _, protocol = examined(OLD, short_path / "protocol", replace(CDI, entries=entries, mps_protocol=3))
    assert wrong_lines(divided) == wrong_lines(protocol) == []


def test_each_entry_is_judged_by_its_own_list(short_path: Path) -> None:
    """Of two entries, one with a burst lacks the agent, and the other has its limits by the hook."""
    burst = EntryNeeds(("driver", "none"), bursts=True)
    _, report = examined(DRIVER_LIMITS, short_path / "burst", replace(CDI, entries=(burst, *NEEDED.entries)))
    assert wrong_lines(report) == []
    (line,) = lines(report)
    assert line.found.startswith("no limits: burst needs the agent gpushare driver-limits, which does not run")


@pytest.mark.parametrize(
    ("files", "off"),
    [
        ({"/etc/modprobe.d/a.conf": OFF}, True),
        ({"/etc/modprobe.d/a.conf": OFF.replace('"', "")}, True),
        ({"/etc/modprobe.d/a.conf": "options nvidia \\\n NVreg_RegistryDwords=RmMemacctMode=0x0\n"}, True),
        ({"/etc/modprobe.d/a.conf": f"# {OFF}"}, False),
        ({"/etc/modprobe.d/a.conf": OFF.replace("nvidia", "nvidia_drm", 1)}, False),
        ({"/etc/modprobe.d/a.conf": OFF + NOTHING}, False),
        ({"/etc/modprobe.d/a.conf": OFF, "/usr/lib/modprobe.d/b.conf": NOTHING}, False),
        ({"/usr/lib/modprobe.d/a.conf": OFF, "/etc/modprobe.d/b.conf": OFF.replace("Mode=0", "Mode=2")}, False),
        ({"/usr/lib/modprobe.d/b.conf": OFF, "/etc/modprobe.d/a.conf": NOTHING}, True),
        ({"/usr/lib/modprobe.d/a.conf": OFF, "/etc/modprobe.d/a.conf": "# of the administrator\n"}, False),
        ({"/etc/modprobe.d/a.conf.off": OFF}, False),
    ],
    ids=[
        "quoted",
        "bare",
        "continued",
        "comment",
        "another module",
        "a second line",
        "a later file",
        "a later file with another mode",
        "an earlier file",
        "a file of the same name",
        "no file of modprobe",
    ],
)
def test_the_last_options_line_counts(files: dict[str, str], short_path: Path, *, off: bool) -> None:
    """One string has all settings of the driver: what comes last replaces what was before."""
    _, report = examined(DRIVER_LIMITS + HostDescription(files), short_path, WISHED)
    assert bool(wrong_lines(report)) == off


def test_a_service_that_leaves_the_hook_out_is_named(short_path: Path) -> None:
    """Where the toolkit's service writes the specification, the remedy has the variable that disables hooks."""
    host = DRIVER_LIMITS_OLD_TOOLKIT.edited("/var/lib/dpkg/status", "1.18.1-1", "1.20.1-1") + HostDescription(
        {
            "/usr/lib/systemd/system/nvidia-cdi-refresh.service": "",
            "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": "NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS=all\n",
        }
    )
    _, report = examined(host, short_path, BY_CDI)
    (line,) = lines(report)
    assert (
        "(a) remove apply-cuda-memory-limits from NVIDIA_CTK_CDI_GENERATE_DISABLED_HOOKS in "
        "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env. Then run `systemctl enable --now nvidia-cdi-refresh.path"
    ) in (line.remedy or "")


def test_a_reservation_that_hides_memory_is_named_with_its_group(short_path: Path) -> None:
    """Where NVML shows less than the kernel counts, the groups that have memory of their own are named."""
    address = GPUS[0].pci_bus_id[-12:].lower()
    reserved = HostDescription(
        {
            f"{CGROUPS}/user.slice/dmem.min": f"nvidia/{address}/vidmem {36864 * MIB}\n",
            f"{CGROUPS}/kubepods.slice/kubepods-burstable.slice/dmem.max": f"nvidia/{address}/vidmem max\n",
        }
    )
    host = DRIVER_LIMITS + reserved
    _, unhidden = examined(host, short_path / "unhidden", ENVVAR)
    assert wrong_lines(unhidden) == []
    source = shown(DRIVER_LIMITS.files["/sys/module/nvidia/version"].strip())
    cards = source.inventory.cards
    source.inventory = replace(source.inventory, cards=(replace(cards[0], memory_mib=4096), cards[1]))
    _, report = examined(host, short_path / "hidden", ENVVAR, source)
    (line,) = wrong_lines(report)
    assert line.found == (
        "NVML shows 4096 MiB of GPU 0, and the kernel counts 40960 MiB, so gpushare offers too little: "
        f"{CGROUPS}/user.slice/dmem.min has 36864 MiB of {address}"
    )
    assert "nvidia-smi memory-limits --set --namespace GROUP --soft-limit 0" in (line.remedy or "")


def test_cgroups_of_pods_are_looked_for_one_level_below(short_path: Path) -> None:
    """A kubelet with a `--cgroup-root`, as in nodes of kind, has the cgroup of all pods in that directory."""
    top = f"{CGROUPS}/kubelet.slice/kubelet-kubepods.slice"
    nested = DRIVER_LIMITS.without(f"{CGROUPS}/kubepods.slice") + HostDescription(
        {f"{top}/cgroup.controllers": "cpu memory\n"}
    )
    _, report = examined(nested, short_path, BY_CDI)
    (line,) = wrong_lines(report)
    assert "the kubepods cgroup has the controllers cpu memory, and not dmem" in line.found


def test_a_node_without_a_driver_is_not_judged(short_path: Path) -> None:
    """What the driver can do is known when it runs."""
    host = KUBEADM_CONTAINERD_1_7.without("/proc/driver", "/sys/module/nvidia")
    _, report = examined(host, short_path, NEEDED)
    assert [(line.judgement, line.found) for line in lines(report)] == [("notLookedAt", "the driver is not loaded")]

"""Tests of `gpushare_plugin.cli`: what each subcommand prints, and how it ends."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
from click.testing import CliRunner

from gpushare_plugin import __version__
from gpushare_plugin.cli.demonstration import PODS
from gpushare_plugin.cli.main import commands
from gpushare_plugin.cli.setting_options import SETTING_OPTIONS
from gpushare_plugin.config.loading.load import load
from gpushare_plugin.testing.kubelet import Container, EmbeddedKubelet, Pod
from gpushare_plugin.testing.nvml import ALL_FUNCTIONS, ErrorCode, FakeGpu, FakeNvml
from tests.process.daemon import gpushare, running, without_library

GPU_MEM = "aliyun.com/gpu-mem"
SHARED_GPU = "nvidia.com/gpu.shared"

CONFIG = """\
version: v1
flags:
  plugin:
    deviceListStrategy: envvar
sharing:
  memory:
    resources:
    - name: aliyun.com/gpu-mem
      devices: [0]
  timeSlicing:
    renameByDefault: true
    resources:
    - name: gpu
      devices: [1]
      replicas: 4
"""
OLD = """\
version: v1
flags:
  plugin:
    deviceListStrategy: envvar
sharing:
  memory:
    resources:
    - name: example.com/gpu-mem
      unit: 2GiB
      devices: [0]
"""
PER_GPU = (Path(__file__).parents[2] / "examples" / "configs" / "per-gpu.yaml").read_text(encoding="utf-8")
WRONG = """\
version: v1
flags:
  migStrategy: sometimes
sharing:
  memory:
    resources:
    - name: aliyun.com/gpu-mem
      unit: 256GiB
    - name: example.com/gpu-mem
      devices: [7]
"""


@pytest.fixture
def node() -> Iterator[FakeNvml]:
    """Describe a node with three cards of two kinds."""
    with FakeNvml([FakeGpu(), FakeGpu("Tesla T4", memory_mib=15360), FakeGpu()]) as described:
        yield described


def written(folder: Path, text: str) -> Path:
    """Write a config file and return its path."""
    path = folder / "config.yaml"
    path.write_text(text)
    return path


class TestUsage:
    """The command line itself."""

    async def test_the_version_is_printed(self) -> None:
        """`python -m gpushare_plugin` is the same command as `gpushare`."""
        done = await gpushare("version")
        assert (done.status, done.output, done.errors) == (0, f"gpushare {__version__}\n", "")

    async def test_the_version_is_an_option_too(self) -> None:
        """Whoever tries what most programs have finds it."""
        done = await gpushare("--version")
        assert (done.status, done.output, done.errors) == (0, f"gpushare {__version__}\n", "")

    @pytest.mark.parametrize(
        "arguments",
        [
            ["serve"],
            ["run", "--memory-unit", "GiB"],
            ["run", "--log-level", "loud"],
            ["check-config"],
            ["list", "-o", "xml"],
            ["demo", "now"],
            ["run", "--config-file", "a", "--config-directory", "b"],
            ["run", "--fallback-strategies", "named,first"],
            ["run", "--node-labels", "perhaps"],
            ["simulate", "--nodes", "a", "--pods", "b", "--policies", "first"],
            ["simulate", "--nodes", "a", "--pods", "b", "--seeds", "0"],
            ["simulate", "--nodes", "a", "--pods", "b", "--load", "nan"],
            ["simulate", "--nodes", "a", "--pods", "b", "--load", "90"],
            ["simulate", "--nodes", "a", "--pods", "b", "--kubeconfig", "c"],
            ["simulate", "--nodes", "a", "--pods", "b", "--context", "c"],
            ["simulate", "--nodes", "a", "--pods", "b", "--policies", "packing,fgd,packing"],
            ["simulate", "--nodes", "a"],
            ["simulate", "--nodes", "a", "--pods", "b", "--generate-pods", "2x81%"],
            ["simulate", "--generate-nodes", "20xA100", "--pods", "b"],
            ["simulate", "--nodes", "a", "--pods", "b", "--add-nodes", "A100"],
            ["simulate", "--nodes", "a", "--pods", "b", "--change-pods", "81%"],
            ["explain"],
        ],
    )
    def test_wrong_usage_ends_with_status_2(self, arguments: list[str]) -> None:
        """Unknown commands, options and words are told apart from failures."""
        done = CliRunner().invoke(commands, arguments)
        assert done.exit_code == 2
        assert "Error: " in done.output

    def test_every_subcommand_is_listed(self) -> None:
        """The help names them all, each with a line of its own."""
        done = CliRunner().invoke(commands, ["--help"])
        people, _, programs = done.output.partition("Commands for people:\n")[2].partition("Programs of a cluster:\n")
        listed = [[line.split()[0] for line in lines.splitlines() if line] for lines in (people, programs)]
        expected = [
            [
                "inspect",
                "explain",
                "web",
                "list",
                "doctor",
                "check-config",
                "schema",
                "simulate",
                "demo",
                "cleanup",
                "debug",
                "completion",
                "version",
            ],
            ["run", "mps", "mig", "driver-limits", "extender", "partition"],
        ]
        assert (done.exit_code, listed) == (0, expected)

    def test_the_help_of_run_tells_every_option_and_variable(self) -> None:
        """Each option stands with its environment twin."""
        done = CliRunner().invoke(commands, ["run", "-h"], terminal_width=120)
        # Long names of variables are broken at their end of line.
        text = "".join(done.output.split())
        own = ["CONFIG_FILE", "SIMULATE", "DEVICE_PLUGIN_PATH", "POD_RESOURCES_SOCKET"]
        own += ["HTTP_ADDRESS", "CORDON_CONFIGMAP", "PARTITIONING", "MIG_ROOT", "ALIYUN_METRICS"]
        own += ["CONFIG_DIRECTORY", "DEFAULT_CONFIG", "FALLBACK_STRATEGIES", "NODE_NAME", "KUBECONFIG", "NODE_LABELS"]
        own += ["STAND_BY", "FOLLOW_PODS", "EVENTS", "CONTAINER_METRICS", "HAMI_METRICS", "POD_NAMESPACE", "POD_NAME"]
        own += [
            "CDI_SPEC_DIRS",
            "CGROUP_ROOT",
            "KUBELET_ROOT",
            "DRIVER_LIMITS_AGENT",
            "DRIVER_LIMITS_ROOT",
            "LOG_FORMAT",
            "LOG_LEVEL",
            "KUBELET_SOCKET",
            "NODE_LABEL",
            "CDI_FEATURE_FLAGS",
            "CDI_DISABLE_HOOKS",
        ]
        pairs = [(f"--{name.lower().replace('_', '-')}", name) for name in own]
        pairs += [(option.names[0], ",".join(option.environment)) for option in SETTING_OPTIONS]
        for option, variable in pairs:
            _before, found, after = text.partition(option)
            assert found
            assert after[after.index("[envvar:") :].startswith(f"[envvar:{variable}")
        assert text.count("[envvar:") == len(pairs)


class TestCheckConfig:
    """`gpushare check-config`."""

    async def test_the_verdict_and_the_resources_come_first(self, node: FakeNvml, tmp_path: Path) -> None:
        """Nothing else is printed: a config of a few lines has dozens of effective settings."""
        config = written(tmp_path, CONFIG)
        done = await gpushare("check-config", config, environment=node.environment)
        assert (done.status, done.errors) == (0, "")
        assert done.output.splitlines() == [
            f"{config}: valid; the 3 GPUs of this node would be advertised as:",
            "  aliyun.com/gpu-mem: 40 on GPU 0",
            "  nvidia.com/gpu.shared: 4 on GPU 1",
            "  nvidia.com/gpu: 1 on GPU 2",
        ]

    async def test_the_chosen_isolation_is_shown_with_the_reasons(self, tmp_path: Path) -> None:
        """Who names several isolations is told which one the node uses, and what it lacks for those before."""
        entry = "{name: aliyun.com/gpu-mem, isolation: [driver, mps, none]}"
        config = written(tmp_path, f"version: v1\nsharing: {{memory: {{resources: [{entry}]}}}}\n")
        lacking, having = tmp_path / "lacking.yaml", tmp_path / "having.yaml"
        lacking.write_text("gpus: [{memory: 8GiB, count: 2}]\n")
        having.write_text('gpus: [{memory: 8GiB, count: 2}]\ndriverVersion: "615.71.09"\ndriverLimits: hook\n')
        reason = (
            "driver: driver 570.86.15 of the simulated GPUs limits no memory, and drivers from 615 on do; to "
            "simulate driver limits, set driverVersion and driverLimits in the file of the GPUs"
        )
        for gpus, sentence, name, reasons in (
            (lacking, f"GPU 0, 1: isolation mps, not {reason}", "mps", [reason]),
            (having, "GPU 0, 1: isolation driver", "driver", []),
        ):
            text, data, listed, rows = await asyncio.gather(
                gpushare("check-config", config, "--simulate", gpus),
                gpushare("check-config", config, "--simulate", gpus, "-o", "json"),
                gpushare("list", "--config-file", config, "--simulate", gpus, "-o", "json"),
                gpushare("list", "--config-file", config, "--simulate", gpus),
            )
            assert text.output.splitlines()[2:] == [f"  {sentence}"]
            (found,) = json.loads(data.output)["configs"]
            assert found["isolations"] == {gpu: {"name": name, "passedOver": reasons} for gpu in "01"}
            gpu = json.loads(listed.output)["gpus"][0]
            assert (gpu["isolation"], gpu["isolationReasons"]) == (name, reasons)
            assert sentence in rows.output.splitlines()

    async def test_the_first_isolation_of_a_list_is_named_too(self, tmp_path: Path) -> None:
        """A list says what may come; both commands say what came, also without a limit by the driver."""
        entry = "{name: aliyun.com/gpu-mem, isolation: [mps, none]}"
        config = written(tmp_path, f"version: v1\nsharing: {{memory: {{resources: [{entry}]}}}}\n")
        (gpus := tmp_path / "gpus.yaml").write_text("gpus: [{memory: 8GiB}]\n")
        checked, listed = await asyncio.gather(
            gpushare("check-config", config, "--simulate", gpus),
            gpushare("list", "--config-file", config, "--simulate", gpus),
        )
        assert checked.output.splitlines()[-1] == "  GPU 0: isolation mps"
        assert "GPU 0: isolation mps" in listed.output.splitlines()

    async def test_an_isolation_that_the_node_lacks_is_a_mistake(self, node: FakeNvml, tmp_path: Path) -> None:
        """The driver of the node is too old, and the message says what to do."""
        entry = "{name: aliyun.com/gpu-mem, isolation: driver}"
        config = written(tmp_path, f"version: v1\nsharing: {{memory: {{resources: [{entry}]}}}}\n")
        done = await gpushare("check-config", config, environment=node.environment)
        assert done.status == 1
        assert "sharing.memory.resources[0].isolation: found driver, but NVIDIA's driver" in done.output
        assert "which drivers from 615 on do; mend that, or let other isolations follow for such nodes" in done.output

    async def test_the_effective_settings_are_shown_on_request(self, node: FakeNvml, tmp_path: Path) -> None:
        """They alone go to standard output, so that they can go into a file."""
        config = written(tmp_path, CONFIG)
        done = await gpushare("check-config", "--show", config, environment=node.environment)
        assert done.status == 0
        assert done.errors.startswith(f"{config}: valid; ")
        assert "deviceListStrategy:\n    - envvar\n" in done.output
        assert "failOnInitError: true\n" in done.output

    async def test_the_effective_settings_load_back(self, node: FakeNvml, tmp_path: Path) -> None:
        """What is printed is a file that means the same, options and environment included."""
        environment = {**node.environment, "DEVICE_ID_STRATEGY": "index"}
        options = ("--device-list-strategy", "cdi-cri,envvar", "--mofed-enabled")
        first = await gpushare("check-config", "--show", written(tmp_path, CONFIG), *options, environment=environment)
        again = written(tmp_path, first.output)
        loaded = load(again)
        assert loaded.problems == ()
        assert loaded.config is not None
        plugin = loaded.config.flags.plugin
        assert (plugin.device_id_strategy, plugin.device_list_strategy) == ("index", ("cdi-cri", "envvar"))
        assert loaded.config.flags.mofed_enabled
        second = await gpushare("check-config", "--show", again, environment=node.environment)
        assert second.output == first.output

    async def test_a_wrong_file_is_refused_with_all_its_mistakes(self, node: FakeNvml, tmp_path: Path) -> None:
        """Each mistake of the file has its place; once there is none, each that only GPUs show."""
        config = written(tmp_path, WRONG)
        for option, places in (
            ("--cdi-kind=nonsense", (f"{config}:3:16: flags.migStrategy: ", "--cdi-kind: flags.plugin.cdiKind: ")),
            (
                "--mig-strategy=none",
                (
                    f"{config}:8:13: sharing.memory.resources[0].unit: ",
                    f"{config}:10:7: sharing.memory.resources[1].devices: ",
                ),
            ),
        ):
            done = await gpushare("check-config", config, option, environment=node.environment)
            assert (done.status, done.errors) == (1, "")
            first, *mistakes = done.output.splitlines()
            assert first == f"{config}: {len(mistakes)} mistakes"
            for place in places:
                assert [line for line in mistakes if line.startswith(place)]

    @pytest.mark.parametrize("embedded", [False, True], ids=["a config", "a ConfigMap"])
    async def test_a_config_that_lost_its_indentation_is_shown(self, tmp_path: Path, *, embedded: bool) -> None:
        """Such a text is YAML, so the config that its keys were part of comes first, before each misplaced key."""
        flat = "".join(line.lstrip(" ") for line in PER_GPU.splitlines(keepends=True))
        manifest = f"apiVersion: v1\nkind: ConfigMap\ndata:\n  shared: |\n{indent(flat, ' ' * 4)}"
        config = written(tmp_path, manifest if embedded else flat)
        done = await gpushare("check-config", config, environment=without_library(tmp_path))
        assert done.status == 1
        place = f"{config}:6:5: data.shared" if embedded else f"{config}:2:1"
        assert done.output.splitlines()[1] == (
            f"{place}: found keys of sections at the top level. If the indentation was lost, this config was meant "
            "(its values were not checked): {version: v1, sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, "
            "unit: 256MiB, devices: …, placement: spread}]}, timeSlicing: {failRequestsGreaterThanOne: true, "
            "resources: [{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, devices: …, replicas: 4}]}}}"
        )

    async def test_a_key_of_another_section_alone_does_not_show_a_config(self, tmp_path: Path) -> None:
        """Where the sections are in their places, the message of the misplaced key says enough."""
        config = written(tmp_path, f"{CONFIG}replicas: 4\n")
        done = await gpushare("check-config", config, environment=without_library(tmp_path))
        assert done.status == 1
        assert 'unknown key "replicas"' in done.output
        assert "If the indentation was lost" not in done.output

    async def test_the_file_alone_is_checked_without_gpus(self, tmp_path: Path) -> None:
        """On a laptop a good file is good, a wrong one is wrong, and what was not checked is said."""
        environment = without_library(tmp_path)
        good = await gpushare("check-config", written(tmp_path, CONFIG), environment=environment)
        assert good.status == 0
        assert good.output == f"{tmp_path / 'config.yaml'}: valid\n"
        assert good.errors.splitlines()[0] == NO_GPU
        assert "NVML cannot be used" in good.errors.splitlines()[1]
        wrong = await gpushare("check-config", written(tmp_path, WRONG), environment=environment)
        assert wrong.status == 1
        assert "config.yaml:3:16: flags.migStrategy: " in wrong.output

    async def test_simulated_gpus_stand_in_for_those_of_another_node(self, tmp_path: Path) -> None:
        """A file of GPUs shows what another node would advertise."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 20GiB, count: 2}]")
        config = written(tmp_path, CONFIG)
        done = await gpushare("check-config", config, "--simulate", gpus, environment=without_library(tmp_path))
        assert done.status == 0
        assert f"valid; the 2 GPUs of {gpus} would be advertised as:\n  aliyun.com/gpu-mem: 20 on GPU 0" in done.output

    async def test_a_mistake_in_the_simulated_gpus_is_not_put_down_to_the_config(self, tmp_path: Path) -> None:
        """All commands name the file of simulated GPUs instead."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 20GiB, cuont: 2}]")
        config = written(tmp_path, CONFIG)
        for command in (("check-config", config), ("list", "--config-file", config)):
            done = await gpushare(*command, "--simulate", gpus)
            assert (done.status, done.output) == (1, "")
            assert done.errors.splitlines()[0] == "gpushare: the file of simulated GPUs cannot be used:"
            assert f"  {gpus}:1:" in done.errors
            assert '"cuont"; did you mean "count"?' in done.errors
        missing = await gpushare("check-config", config, "--simulate", tmp_path / "nowhere.yaml")
        assert missing.errors.startswith("gpushare: the file of simulated GPUs cannot be used:\n")

    async def test_the_changes_between_two_files_are_told(self, node: FakeNvml, tmp_path: Path) -> None:
        """Only what differs is printed: settings by their path, and the units of each name."""
        new, old = written(tmp_path, CONFIG), tmp_path / "old.yaml"
        old.write_text(OLD)
        done = await gpushare("check-config", new, "--against", old, environment=node.environment)
        assert (done.status, done.errors) == (0, "")
        assert done.output.splitlines() == [
            "# Changes in the config:",
            "sharing.timeSlicing: added",
            "sharing.memory.resources[0].name: example.com/gpu-mem -> aliyun.com/gpu-mem",
            "sharing.memory.resources[0].unit: 2GiB -> GiB",
            "# Changes in the units advertised on this node:",
            "example.com/gpu-mem: removed, was 20",
            "nvidia.com/gpu: 2 -> 1",
            "aliyun.com/gpu-mem: added, 40",
            "nvidia.com/gpu.shared: added, 4",
        ]

    async def test_the_document_shows_the_changes_as_printed(self, tmp_path: Path) -> None:
        """The example of the configuration page is what a node of two 40 GiB GPUs prints."""
        new, old, gpus = (tmp_path / name for name in ("new.yaml", "old.yaml", "gpus.yaml"))
        new.write_text("""
sharing:
  memory: {resources: [{name: aliyun.com/gpu-mem, unit: 2GiB, devices: [0]}]}
  timeSlicing: {resources: [{name: gpu, rename: gpu.shared, devices: [1], replicas: 4}]}
""")
        old.write_text("sharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}")
        gpus.write_text("gpus: [{memory: 40GiB, count: 2}]")
        done = await gpushare("check-config", new, "--against", old, "--simulate", gpus)
        page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
        assert f"$ gpushare check-config new.yaml --against old.yaml\n{done.output}```" in page

    async def test_devices_for_claims_are_printed_as_a_resource_slice_has_them(self, tmp_path: Path) -> None:
        """In JSON, each device is in the form of the API; without a section `dra` there are none."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 40GiB, count: 2}]")
        config = "dra: {devices: [0]}\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem, unit: 2GiB}]}}"
        done = await gpushare("check-config", "-o", "json", written(tmp_path, config), "--simulate", gpus)
        (found,) = json.loads(done.output)["configs"]
        (device,) = found["devices"]
        policy = {"default": "40Gi", "validRange": {"min": "2Gi", "step": "2Gi"}}
        assert device["capacity"] == {"memory": {"value": "40Gi", "requestPolicy": policy}}
        assert device["attributes"]["way"] == {"string": "memory"}
        assert device["allowMultipleAllocations"]
        done = await gpushare("check-config", "-o", "json", written(tmp_path, CONFIG), "--simulate", gpus)
        assert json.loads(done.output)["configs"][0]["devices"] == []

    async def test_another_name_of_the_dra_driver_is_printed(self, tmp_path: Path) -> None:
        """With what happens to the claims that there are."""
        gpus, new, old = (tmp_path / name for name in ("gpus.yaml", "new.yaml", "old.yaml"))
        gpus.write_text("gpus: [{memory: 40GiB}]")
        new.write_text("dra: {driver: new.example.com}")
        old.write_text("dra: {}")
        done = await gpushare("check-config", new, "--against", old, "--simulate", gpus)
        assert done.output.endswith(
            "# Changes in the GPUs given by claim on this node:\n"
            "dra.driver: gpu.gpushare.io -> new.example.com: a node gives GPUs by claim under the new name once all of "
            "its claims of gpu.gpushare.io have ended\n"
        )

    async def test_changes_for_claims_are_printed(self, tmp_path: Path) -> None:
        """Only what differs of each device, for all alike GPUs together; a GPU comes, goes or changes."""
        gpus, new, old = (tmp_path / name for name in ("gpus.yaml", "new.yaml", "old.yaml"))
        gpus.write_text("gpus: [{memory: 40GiB, count: 4}]")
        sharing = "sharing: {memory: {resources: [{name: aliyun.com/gpu-mem, devices: [0, 1, 2]}]}}"
        new.write_text(f"dra: {{default: 8GiB, devices: [0, 1, 3]}}\n{sharing}")
        old.write_text(f"dra: {{devices: [0, 1, 2]}}\n{sharing}")
        done = await gpushare("check-config", new, "--against", old, "--simulate", gpus)
        lines = done.output.splitlines()
        assert lines[lines.index("# Changes in the GPUs given by claim on this node:") + 1 :] == [
            "GPU 0, 1: memory 40Gi in steps of 1Gi (40Gi by default) -> memory 40Gi in steps of 1Gi (8Gi by default)",
            "GPU 2: removed, was shared by memory, isolation none; memory 40Gi in steps of 1Gi (40Gi by default)",
            "GPU 3: added, whole; memory 40Gi",
        ]

    async def test_a_file_that_changes_nothing_is_told_so(self, node: FakeNvml, tmp_path: Path) -> None:
        """The options and variables of the node hold for both files."""
        config = written(tmp_path, CONFIG)
        again = tmp_path / "again.yaml"
        again.write_text(f"{CONFIG}health: {{goodProbes: 3}}")
        options = ("--against", config, "--mig-strategy", "single")
        done = await gpushare("check-config", again, *options, environment=node.environment)
        assert (done.status, done.errors) == (0, "")
        assert done.output == "# No changes in the config.\n# No changes in the units advertised on this node.\n"

    async def test_settings_alone_are_compared_without_gpus(self, tmp_path: Path) -> None:
        """The command says what was not compared."""
        old = tmp_path / "old.yaml"
        old.write_text(OLD)
        done = await gpushare(
            "check-config", written(tmp_path, CONFIG), "--against", old, environment=without_library(tmp_path)
        )
        assert done.status == 0
        assert "sharing.timeSlicing: added\n" in done.output
        assert "advertised" not in done.output
        assert NO_GPU in done.errors

    async def test_an_old_file_that_is_wrong_cannot_be_compared_with(self, node: FakeNvml, tmp_path: Path) -> None:
        """Its mistakes are told with their places, and so are those of the GPUs."""
        old = tmp_path / "old.yaml"
        old.write_text(WRONG)
        compare = ("check-config", written(tmp_path, CONFIG), "--against", old)
        for option, place in (
            ("--gds-enabled", "3:16: flags.migStrategy: "),
            ("--mig-strategy=none", "10:7: sharing.memory.resources[1].devices: "),
        ):
            done = await gpushare(*compare, option, environment=node.environment)
            assert (done.status, done.errors) == (1, "")
            assert f"\n{old}:{place}" in done.output
            assert "Changes" not in done.output

    async def test_warnings_are_printed_and_fail_with_strict(self, node: FakeNvml, tmp_path: Path) -> None:
        """Warnings name settings that are accepted and have no effect."""
        config = written(tmp_path, "version: v1\nflags:\n  gfd:\n    oneshot: true\n")
        plain, strict, quiet, both = await asyncio.gather(
            *(
                gpushare("check-config", *options, config, environment=node.environment)
                for options in ((), ("--strict",), ("-q",), ("-q", "--strict"))
            )
        )
        warning = f"{config}: warning: flags.gfd belongs to GPU feature discovery and has no effect here"
        assert (plain.status, strict.status, quiet.status, both.status) == (0, 1, 0, 1)
        assert plain.output.splitlines()[0].startswith(f"{config}: valid with 1 warning; the 3 GPUs of this node ")
        assert plain.output.splitlines()[-1] == warning
        assert (strict.output, quiet.output, both.output) == (plain.output, "", f"{warning}\n")

    async def test_quiet_prints_mistakes_only(self, tmp_path: Path) -> None:
        """What is valid, counted or not checked is not mentioned."""
        good, bad = written(tmp_path, CONFIG), tmp_path / "bad.yaml"
        bad.write_text("version: v2\n")
        done = await gpushare("check-config", "-q", good, bad, environment=without_library(tmp_path))
        assert (done.status, done.errors) == (1, "")
        assert done.output == f'{bad}:1:10: version: found "v2"; allowed: v1\n'

    async def test_several_files_are_checked_to_the_end(self, node: FakeNvml, tmp_path: Path) -> None:
        """A file that is missing or wrong does not hide what follows; the counts come last."""
        good = written(tmp_path, CONFIG)
        done = await gpushare("check-config", tmp_path / "nowhere.yaml", good, environment=node.environment)
        assert done.status == 1
        lines = done.output.splitlines()
        assert lines[:2] == [
            f"{tmp_path / 'nowhere.yaml'}: 1 mistake",
            f"{tmp_path / 'nowhere.yaml'}: there is no such file; check the path",
        ]
        assert lines[-1] == "2 configs: 1 valid, 1 with mistakes"

    async def test_directories_and_manifests_are_checked(self, tmp_path: Path) -> None:
        """Each config in them has its verdict, and each mistake its line in the file it stands in."""
        (tmp_path / "git").mkdir()
        manifest, values = tmp_path / "git" / "configmap.yaml", tmp_path / "git" / "values.yaml"
        manifest.write_text(f"apiVersion: v1\nkind: ConfigMap\ndata:\n  default: |\n{indent(WRONG, '    ')}")
        values.write_text(f"config:\n  map:\n    one: |\n{indent(CONFIG, '      ')}")
        done = await gpushare("check-config", tmp_path / "git", environment=without_library(tmp_path))
        assert done.status == 1
        first, mistake, *rest = done.output.splitlines()
        assert first == f"{manifest} (data.default): 1 mistake"
        assert mistake.startswith(f"{manifest}:7:20: data.default.flags.migStrategy: ")
        assert rest == [f"{values} (config.map.one): valid", "2 configs: 1 valid, 1 with mistakes"]

    @pytest.mark.parametrize("options", [(), ("--strict",)], ids=["plain", "strict"])
    async def test_values_without_a_config_have_the_offer_of_the_default(
        self, node: FakeNvml, tmp_path: Path, options: tuple[str, ...]
    ) -> None:
        """The same for the file and for its directory: no mistake, the reason and the offer."""
        values = tmp_path / "values.yaml"
        values.write_text("cluster: {nodeLabels: false}\nruntimeClassName: nvidia\n")
        file = await gpushare("check-config", *options, values, environment=node.environment)
        folder = await gpushare("check-config", *options, tmp_path, environment=node.environment)
        assert (file.status, file.errors, folder) == (0, "", file)
        default = "the default of gpushare's chart counts (every GPU by memory, in GiB, as aliyun.com/gpu-mem)"
        reason, *offer = file.output.splitlines()
        expected = "the 3 GPUs of this node would be advertised as:"
        assert reason == f"{values}: Helm values without a config: {default}; {expected}"
        assert [line.split(":")[0] for line in offer] == ["  aliyun.com/gpu-mem"]

    async def test_values_with_a_configmap_of_ones_own_offer_nothing(self, node: FakeNvml, tmp_path: Path) -> None:
        """The ConfigMap is not here: nothing is promised of it, counted or compared."""
        values, config = tmp_path / "values.yaml", written(tmp_path, CONFIG)
        values.write_text("config: {name: mine}\n")
        note = f'{values}: Helm values without a config: the configs are in the ConfigMap "mine" (config.name), and not'
        done = await gpushare("check-config", "--strict", config, values, environment=node.environment)
        *_, told, last = done.output.splitlines()
        assert (done.status, told, last) == (0, f"{note} checked here", "1 config: 1 valid")
        shown = await gpushare("check-config", "--show", config, values, environment=node.environment)
        assert (shown.status, shown.output.startswith("version: v1\n")) == (0, True)
        compared = await gpushare("check-config", values, "--against", config, environment=node.environment)
        assert (compared.status, "found 0 in FILE, 1 in OLD" in compared.errors) == (2, True)

    async def test_standard_input_is_checked(self) -> None:
        """What another program wrote, such as `helm template` or `kubectl get configmap -o yaml`."""
        data = f"kind: List\napiVersion: v1\nitems:\n- kind: ConfigMap\n  data:\n    x: |\n{indent(WRONG, '      ')}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpushare_plugin", "check-config", "-q", "-"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate(data.encode())
        assert process.returncode == 1
        assert output.decode().startswith("stdin:9:22: items[0].data.x.flags.migStrategy: ")

    @pytest.mark.parametrize("redirection", ["<&-", "0>/dev/null"], ids=["closed", "for writing"])
    def test_a_standard_input_that_cannot_be_read_is_a_mistake(self, redirection: str) -> None:
        """As with a file, and without a traceback."""
        command = f"{sys.executable} -m gpushare_plugin check-config -q - {redirection}"
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "")
        [line] = done.stdout.splitlines()
        assert line.startswith("stdin:")

    async def test_the_simulated_gpus_are_looked_at_whatever_the_configs_are(self, tmp_path: Path) -> None:
        """Both mistakes are told at once, that of the config and that of the GPUs."""
        config = written(tmp_path, "version: v2\n")
        done = await gpushare("check-config", config, "--simulate", tmp_path / "nowhere.yaml")
        assert done.status == 1
        assert f'{config}:1:10: version: found "v2"; allowed: v1' in done.errors
        assert f"{tmp_path / 'nowhere.yaml'}: there is no such file" in done.errors

    @pytest.mark.parametrize("arguments", [("",), ("-", "--against", ""), ("-", "--simulate", "")], ids=str)
    async def test_an_empty_path_is_no_path(self, arguments: tuple[str, ...]) -> None:
        """It is not taken for the current directory: most likely a variable of a script is not set."""
        done = await gpushare("check-config", *arguments)
        assert (done.status, "found an empty path" in done.errors) == (2, True)

    async def test_files_that_are_passed_over_are_named(self, tmp_path: Path) -> None:
        """On standard error, and not with -q; with --strict they fail."""
        folder = tmp_path / "configs"
        folder.mkdir()
        written(folder, CONFIG)
        (folder / "other.conf").write_text("sharin: {}\n")
        line = f"1 file passed over, not recognised as a config: {folder / 'other.conf'}"
        for options, status, told in (((), 0, True), (("-q",), 0, False), (("-q", "--strict"), 1, True)):
            done = await gpushare("check-config", *options, folder, environment=without_library(tmp_path))
            assert (done.status, line in done.errors.splitlines()) == (status, told)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ("closed/config.yaml", "no permission to read this file"),
            ("closed", "this directory cannot be read: Permission denied"),
            (".", "this directory cannot be read: Permission denied"),
        ],
    )
    def test_a_file_that_may_not_be_read_is_a_mistake(self, tmp_path: Path, given: str, message: str) -> None:
        """Such a file is neither passed over nor the end of the command."""
        closed = tmp_path / "closed"
        closed.mkdir()
        written(closed, CONFIG)
        closed.chmod(0)
        # Root may read everything, so the command is imported as root and runs as nobody.
        program = (
            "import os; from gpushare_plugin.cli.main import commands; commands.load('check-config')\n"
            "import gpushare_plugin.config.loading.document\n"
            "root = os.geteuid() == 0\n"
            "if root: os.seteuid(65534)\n"
            "try: commands()\n"
            "finally: root and os.seteuid(0)\n"  # what measures coverage writes its file at the end
        )
        tmp_path.chmod(0o755)
        command = [sys.executable, "-c", program, "check-config", given]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        closed.chmod(0o700)
        assert (done.returncode, done.stderr) == (1, "")
        assert message in done.stdout

    @pytest.mark.parametrize("arguments", [("-", "-"), ("-", "--against", "-")], ids=" ".join)
    async def test_standard_input_that_is_given_twice_is_refused(self, arguments: tuple[str, ...]) -> None:
        """The second time there would be nothing left to read."""
        done = await gpushare("check-config", *arguments)
        assert (done.status, "standard input (-) is given twice" in done.errors) == (2, True)

    async def test_the_settings_of_several_configs_are_told_apart(self, tmp_path: Path) -> None:
        """Each document of the stream names its config in a comment; that of a single one has none."""
        (tmp_path / "two.yaml").write_text(CONFIG)
        both = (written(tmp_path, CONFIG), tmp_path / "two.yaml")
        done = await gpushare("check-config", "--show", *both, environment=without_library(tmp_path))
        documents = done.output.split("---\n")
        assert [each.splitlines()[0] for each in documents] == [f"# {file}" for file in both]

    async def test_a_long_number_is_shortened(self, tmp_path: Path) -> None:
        """What Python cannot convert is rejected as any other word is."""
        config = written(tmp_path, CONFIG)
        done = await gpushare("check-config", config, "-q", f"--imex-channel-ids={'9' * 5000}")
        assert (done.status, done.errors) == (1, "")
        assert len(done.output) < 300
        many = await gpushare("check-config", config, "-q", f"--imex-channel-ids={','.join(['1'] * 5000)}")
        assert (many.status, len(many.output) < 300) == (1, True)

    @pytest.mark.parametrize(("name", "shown"), [(b"a\nb.yaml", r"a\nb.yaml"), (b"a\xff.yaml", r"a\udcff.yaml")])
    async def test_names_of_files_are_printed_on_one_line(self, tmp_path: Path, name: bytes, shown: str) -> None:
        """Control characters and bytes that are no text are escaped."""
        file = written(tmp_path, "version: v2\n").rename(tmp_path / os.fsdecode(name))
        done = await gpushare("check-config", file)
        assert (done.status, done.errors) == (1, "")
        assert [shown in line for line in done.output.splitlines()] == [True, True]

    async def test_json_has_what_is_printed_for_people_as_data(self, node: FakeNvml, tmp_path: Path) -> None:
        """Verdict, mistakes with their places, warnings, resources and, on request, the effective settings."""
        good, bad = written(tmp_path, CONFIG), tmp_path / "bad.yaml"
        bad.write_text("version: v2\n")
        done = await gpushare("check-config", "-o", "json", "--show", good, bad, environment=node.environment)
        assert (done.status, done.errors) == (1, "")
        data = json.loads(done.output)
        right, wrong = data["configs"]
        assert data["version"] == 1
        assert (data["gpus"], right["file"], right["valid"], right["mistakes"]) == (3, str(good), True, [])
        assert right["resources"][0] == {"name": GPU_MEM, "units": 40, "gpus": ["0"]}
        assert right["settings"]["sharing"]["memory"]["resources"][0]["unit"] == "GiB"
        assert (wrong["valid"], wrong["resources"], wrong["settings"]) == (False, None, None)
        [mistake] = wrong["mistakes"]
        assert (mistake["file"], mistake["line"], mistake["column"], mistake["path"]) == (str(bad), 1, 10, "version")

    @pytest.mark.parametrize("option", ["--show", "-q", "-ojson"])
    async def test_options_that_ask_for_more_than_changes_are_refused(self, tmp_path: Path, option: str) -> None:
        """With `--against` the command prints nothing but changes."""
        config = written(tmp_path, CONFIG)
        done = await gpushare("check-config", config, "--against", config, option)
        assert (done.status, "--against prints changes only" in done.errors) == (2, True)

    async def test_changes_of_several_configs_are_refused(self, tmp_path: Path) -> None:
        """Of several, nobody could say which is meant."""
        config = written(tmp_path, CONFIG)
        done = await gpushare("check-config", config, config, "--against", config)
        assert (done.status, "--against compares two configs; found 2 in FILE, 1 in OLD" in done.errors) == (2, True)

    async def test_a_manifest_in_the_place_of_a_config_is_recognised(self, node: FakeNvml, tmp_path: Path) -> None:
        """Whoever pasted a whole ConfigMap, or Helm values, is told what to leave."""
        pasted = written(tmp_path, f"apiVersion: v1\nkind: ConfigMap\ndata:\n  mine: |\n{indent(CONFIG, '    ')}")
        done = await gpushare("list", "--config-file", pasted, environment=node.environment)
        assert (done.status, done.output) == (1, "")
        [mistake] = done.errors.splitlines()[1:]
        assert mistake.startswith(f'  {pasted}:2:1: kind: found a Kubernetes manifest of kind "ConfigMap", but ')
        assert mistake.endswith("; give only the text below data.mine, as a file of its own")


NO_GPU = "No GPU here: only the file was checked; add --simulate FILE to see resources."


class TestList:
    """`gpushare list`."""

    async def test_list_shows_which_container_holds_how_much_of_a_gpu(
        self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path
    ) -> None:
        """Table and JSON show each GPU, what it is advertised as, and who holds how much of it."""
        options = ("--config-file", written(tmp_path, CONFIG))
        asked = ("--pod-resources-socket", kubelet.pod_resources_socket)
        async with running(kubelet, *options, environment=node.environment) as daemon:
            await daemon.advertises(kubelet, {GPU_MEM: 40, SHARED_GPU: 4, "nvidia.com/gpu": 1})
            containers = [Container("model", {GPU_MEM: 5}), Container("proxy", {SHARED_GPU: 1})]
            await kubelet.admit(Pod("inference", containers, namespace="team"))
            table, data = await asyncio.gather(
                gpushare("list", *options, *asked, environment=node.environment),
                gpushare("list", *options, *asked, "-o", "json", environment=node.environment),
            )
        assert (table.status, data.status, data.errors) == (0, 0, "")
        assert table.errors.startswith("Source: the config; the daemon was not asked")
        gpus = json.loads(data.output)["gpus"]
        assert [(gpu["uuid"], gpu["resource"], gpu["units"], gpu["used"]) for gpu in gpus] == [
            (node.gpus[0].uuid, GPU_MEM, 40, 5),
            (node.gpus[1].uuid, SHARED_GPU, 4, 1),
            (node.gpus[2].uuid, "nvidia.com/gpu", 1, 0),
        ]
        not_looked_at = {"memoryLimitMiB": None, "memoryUsedMiB": None, "utilization": None, "overLimit": False}
        not_looked_at["limitEffect"] = None
        holds = {"namespace": "team", "pod": "inference", "container": "model", "units": 5}
        assert gpus[0]["uses"] == [holds | not_looked_at]
        lines = [line.split() for line in table.output.splitlines()]
        assert [line[-3] for line in lines[1:4]] == ["5/40", "1/4", "0/1"]
        assert lines[-2:] == [
            ["0", "team", "inference", "model", GPU_MEM, "5"],
            ["1", "team", "inference", "proxy", SHARED_GPU, "1"],
        ]

    async def test_gpus_are_listed_without_a_kubelet(self, node: FakeNvml, tmp_path: Path) -> None:
        """Holdings are said not to be known; the rest is printed. That no daemon answers needs attention."""
        options = ("--pod-resources-socket", tmp_path / "kubelet.sock", "--device-plugin-path", tmp_path)
        table, data = await asyncio.gather(
            gpushare("list", *options, environment=node.environment),
            gpushare("list", *options, "-o", "json", environment=node.environment),
        )
        assert (table.status, data.status) == (3, 3)
        assert table.errors == data.errors
        assert data.errors.startswith("Source: the config; no daemon answers at ")
        assert "\ngpushare: cannot list the pods that hold units: " in data.errors
        assert [line.split()[-3] for line in table.output.splitlines()[1:]] == ["?/40", "?/15", "?/40"]
        assert [gpu["uses"] for gpu in json.loads(data.output)["gpus"]] == [None] * 3

    async def test_a_card_that_does_not_answer_is_listed(self, node: FakeNvml, tmp_path: Path) -> None:
        """What is left out is shown with the reason, in both forms."""
        node.fail(1, ALL_FUNCTIONS, ErrorCode.GPU_IS_LOST)
        options = ("--pod-resources-socket", tmp_path / "kubelet.sock", "--device-plugin-path", tmp_path)
        table, data = await asyncio.gather(
            gpushare("list", *options, environment=node.environment),
            gpushare("list", *options, "-o", "json", environment=node.environment),
        )
        assert (table.status, data.status) == (3, 3)
        assert "GPU 1: unresponsive: GPU is lost" in table.output.splitlines()
        assert json.loads(data.output)["failed"] == [
            {"index": 1, "reason": "GPU is lost", "uuid": None, "lost": True, "number": None}
        ]

    async def test_a_node_without_gpus_is_a_failure(self, tmp_path: Path) -> None:
        """There is neither a daemon nor anything to list, which is told on a line each."""
        done = await gpushare("list", environment=without_library(tmp_path))
        assert (done.status, done.output) == (1, "")
        first, second = done.errors.splitlines()
        assert first.startswith("Source: the config; no daemon answers at ")
        assert second.startswith("gpushare: NVML cannot be used: ")


class TestColours:
    """Colours are for people at a terminal, and not for those who set NO_COLOR."""

    @pytest.mark.parametrize(
        ("terminal", "environment", "coloured"),
        [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (False, {}, False)],
        ids=["terminal", "NO_COLOR", "file"],
    )
    def test_a_log_in_a_file_has_no_colours(
        self, environment: dict[str, str], *, terminal: bool, coloured: bool
    ) -> None:
        """A log for people that goes into a file is text and nothing else."""
        arguments = ("run", "--log-format", "console", "--config-file", "/nowhere")
        text = printed(arguments, environment, terminal=terminal)
        assert "start_failed" in text
        assert (CONTROL_SEQUENCE in text) is coloured

    def test_a_table_in_a_file_has_no_colours(self, tmp_path: Path) -> None:
        """A table in a file is text and nothing else."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 20GiB}]")
        text = printed(("list", "--simulate", str(gpus)), {}, terminal=False)
        assert "aliyun.com/gpu-mem" in text
        assert CONTROL_SEQUENCE not in text


CONTROL_SEQUENCE = "\x1b["
"""The beginning of what chooses a colour, or bold type, at a terminal (ECMA-48, CSI)."""


def printed(arguments: tuple[str, ...], environment: dict[str, str], *, terminal: bool) -> str:
    """Return all that a command prints, on a terminal or into a pipe."""
    reader, writer = os.openpty() if terminal else os.pipe()
    inherited = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
    with os.fdopen(reader, "rb", buffering=0) as output:
        with os.fdopen(writer, "wb", buffering=0) as descriptor:
            command = (sys.executable, "-m", "gpushare_plugin", *arguments)
            process = subprocess.Popen(
                command,
                env={**inherited, "TERM": "xterm-256color", "COLUMNS": "200", **environment},
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
            )
        content = b""
        # A terminal that nobody has open any more cannot be read, rather than being at its end.
        with contextlib.suppress(OSError):
            while data := output.read(1 << 16):
                content += data
        process.wait()
    return content.decode()


class TestDemo:
    """`gpushare demo`."""

    @pytest.mark.parametrize("columns", [30, 60, 70])
    async def test_no_name_is_cut(self, tmp_path: Path, columns: int) -> None:
        """A narrow terminal gets fewer columns, or a line for each value, and every name is whole."""
        done = await gpushare("demo", environment={**without_library(tmp_path), "COLUMNS": str(columns)})
        words = done.output.split()
        for pod in PODS:
            assert pod.name in words
        for word in ("nvidia.com/gpu.shared", "aliyun.com/gpu-mem", "33/40", "16384"):
            assert word in words
        assert not any("…" in word for word in words)

    async def test_the_demonstration_ends_by_itself(self, tmp_path: Path) -> None:
        """On any machine, and in 80 columns, it shows for each pod its GPU and limits, and how full each GPU is."""
        done = await gpushare("demo", environment={**without_library(tmp_path), "COLUMNS": "80"})
        assert (done.status, done.errors) == (0, "")
        lines = done.output.splitlines()
        assert max(map(len, lines)) <= 80
        rows = {line.split()[0]: line for line in lines if line}
        for pod, card, limit in [
            ("inference", "NVIDIA A100-SXM4-40GB", "5120 MiB"),
            ("chat", "NVIDIA A100-SXM4-40GB", "16384 MiB"),
            ("notebook-b", "NVIDIA A10", "none"),
            ("training", "NVIDIA L40S", "none"),
        ]:
            assert card in rows[pod]
            assert rows[pod].rstrip().endswith(limit)
        assert {pod.name for pod in PODS} <= rows.keys()
        assert [line.split()[-1] for line in lines if line.startswith(("0 ", "1 ", "2 ", "3 "))] == [
            "████████░░",
            "█████░░░░░",
            "█████░░░░░",
            "██████████",
        ]
        assert "  GPUSHARE_MEMORY_LIMIT_MIB=5120" in lines

    async def test_the_output_is_text_in_any_locale(self, tmp_path: Path) -> None:
        """Bars and dashes are UTF-8 also where the locale knows ASCII only, as with the programs of Kubernetes."""
        ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        done = await gpushare("demo", environment={**without_library(tmp_path), **ascii_only})
        assert (done.status, done.errors) == (0, "")
        assert "█" in done.output


class TestOutput:
    """Standard streams that cannot be written."""

    def run(self, redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command under a shell that redirects its streams."""
        command = " ".join([sys.executable, "-m", "gpushare_plugin", *arguments, redirection])
        return subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)

    @pytest.mark.parametrize("arguments", [("version",), ("mps", "--help"), ("list", "--simulate", "GPUS")])
    def test_an_output_that_is_full_is_an_error_in_one_line(self, tmp_path: Path, arguments: tuple[str, ...]) -> None:
        """There is no traceback, and the status says that the command failed."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 16GiB}]\n")
        finished = self.run(">/dev/full", *(str(gpus) if each == "GPUS" else each for each in arguments))
        assert finished.returncode == 1
        assert finished.stderr.splitlines()[-1] == "gpushare: cannot write the output: No space left on device"
        assert "Traceback" not in finished.stderr

    def test_warnings_that_cannot_be_written_lose_no_result(self, tmp_path: Path) -> None:
        """The table is printed though the line beside it, that no pods can be listed, is not."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 16GiB}]\n")
        finished = self.run("2>/dev/full", "list", "--simulate", str(gpus))
        assert (finished.returncode, "aliyun.com/gpu-mem" in finished.stdout) == (0, True)

    def test_a_command_without_standard_streams_writes_into_no_other_file(self, tmp_path: Path) -> None:
        """Commands that were started without them do not fail."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 16GiB}]\n")
        assert self.run("<&- >&- 2>&-", "list", "--simulate", str(gpus)).returncode == 0


def test_the_root_of_mps_is_an_absolute_path() -> None:
    """A relative path would name another directory in each container."""
    result = CliRunner().invoke(commands, ["mps", "--mps-root", "relative"])
    assert (result.exit_code, "expected an absolute path" in result.output) == (2, True)

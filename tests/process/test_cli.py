"""Tests of `gpushare_plugin.cli`: what each subcommand prints, and how it ends."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
        listed = [line.split()[0] for line in done.output.partition("Commands:\n")[2].splitlines()]
        expected = ["check-config", "cleanup", "demo", "list", "mps", "run", "version"]
        assert (done.exit_code, listed) == (0, expected)

    def test_the_help_of_run_tells_every_option_and_variable(self) -> None:
        """Each option stands with its environment twin."""
        done = CliRunner().invoke(commands, ["run", "-h"], terminal_width=120)
        # Long names of variables are broken at their end of line.
        text = "".join(done.output.split())
        own = ["CONFIG_FILE", "SIMULATE", "DEVICE_PLUGIN_PATH", "POD_RESOURCES_SOCKET", "HTTP_ADDRESS"]
        own += ["CONFIG_DIRECTORY", "DEFAULT_CONFIG", "FALLBACK_STRATEGIES", "NODE_NAME", "KUBECONFIG", "NODE_LABELS"]
        own += ["FOLLOW_PODS", "POD_NAMESPACE", "POD_NAME", "LOG_FORMAT", "LOG_LEVEL"]
        pairs = [(f"--{name.lower().replace('_', '-')}", name) for name in own]
        pairs += [(option.names[0], ",".join(option.environment)) for option in SETTING_OPTIONS]
        for option, variable in pairs:
            _before, found, after = text.partition(option)
            assert found
            assert after[after.index("[envvar:") :].startswith(f"[envvar:{variable}")
        assert text.count("[envvar:") == len(pairs)


class TestCheckConfig:
    """`gpushare check-config`."""

    async def test_a_good_file_is_spelled_out(self, node: FakeNvml, tmp_path: Path) -> None:
        """All effective settings are printed, and what the GPUs here would be advertised as."""
        config = written(tmp_path, CONFIG)
        done = await gpushare("check-config", config, environment=node.environment)
        assert (done.status, done.errors) == (0, "")
        assert done.output.splitlines()[-4:] == [
            "# The 3 GPUs of this node would be advertised as:",
            "#   aliyun.com/gpu-mem: 40 on GPU 0",
            "#   nvidia.com/gpu.shared: 4 on GPU 1",
            "#   nvidia.com/gpu: 1 on GPU 2",
        ]
        assert "deviceListStrategy:\n    - envvar\n" in done.output
        assert "failOnInitError: true\n" in done.output

    async def test_the_effective_settings_load_back(self, node: FakeNvml, tmp_path: Path) -> None:
        """What is printed is a file that means the same, options and environment included."""
        environment = {**node.environment, "DEVICE_ID_STRATEGY": "index"}
        options = ("--device-list-strategy", "cdi-cri,envvar", "--mofed-enabled")
        first = await gpushare("check-config", written(tmp_path, CONFIG), *options, environment=environment)
        again = written(tmp_path, first.output)
        loaded = load(again)
        assert loaded.problems == ()
        assert loaded.config is not None
        plugin = loaded.config.flags.plugin
        assert (plugin.device_id_strategy, plugin.device_list_strategy) == ("index", ("cdi-cri", "envvar"))
        assert loaded.config.flags.mofed_enabled
        assert (await gpushare("check-config", again, environment=node.environment)).output == first.output

    async def test_a_wrong_file_is_refused_with_all_its_mistakes(self, node: FakeNvml, tmp_path: Path) -> None:
        """Each mistake of the file has its place, then each that only GPUs show, and nothing is printed."""
        config = written(tmp_path, WRONG)
        done = await gpushare("check-config", config, "--cdi-kind=nonsense", environment=node.environment)
        assert (done.status, done.output) == (1, "")
        first, *mistakes = done.errors.splitlines()
        assert first == "gpushare: the config cannot be used:"
        for place in (
            f"  {config}:3:16: flags.migStrategy: ",
            "  --cdi-kind: flags.plugin.cdiKind: ",
        ):
            assert [line for line in mistakes if line.startswith(place)]
        done = await gpushare("check-config", config, "--mig-strategy=none", environment=node.environment)
        assert (done.status, done.output) == (1, "")
        first, *mistakes = done.errors.splitlines()
        assert first == "gpushare: the config cannot be used:"
        for place in (
            f"  {config}:8:13: sharing.memory.resources[0].unit: ",
            f"  {config}:10:7: sharing.memory.resources[1].devices: ",
        ):
            assert [line for line in mistakes if line.startswith(place)]

    async def test_without_gpus_the_file_alone_is_checked(self, tmp_path: Path) -> None:
        """On a laptop a good file is good, a wrong one is wrong, and what was not checked is said."""
        environment = without_library(tmp_path)
        good = await gpushare("check-config", written(tmp_path, CONFIG), environment=environment)
        assert good.status == 0
        assert good.errors.startswith("# Checked the file only: NVML cannot be")
        assert "advertised" not in good.output
        wrong = await gpushare("check-config", written(tmp_path, WRONG), environment=environment)
        assert wrong.status == 1
        assert "config.yaml:3:16: flags.migStrategy: " in wrong.errors

    async def test_simulated_gpus_stand_in(self, tmp_path: Path) -> None:
        """A file of GPUs shows what another node would advertise."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 20GiB, count: 2}]")
        config = written(tmp_path, CONFIG)
        done = await gpushare("check-config", config, "--simulate", gpus, environment=without_library(tmp_path))
        assert done.status == 0
        assert "#   aliyun.com/gpu-mem: 20 on GPU 0" in done.output

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

    async def test_a_file_that_changes_nothing_is_told_so(self, node: FakeNvml, tmp_path: Path) -> None:
        """The options and variables of the node hold for both files."""
        config = written(tmp_path, CONFIG)
        again = tmp_path / "again.yaml"
        again.write_text(f"{CONFIG}health: {{goodProbes: 3}}")
        options = ("--against", config, "--mig-strategy", "single")
        done = await gpushare("check-config", again, *options, environment=node.environment)
        assert (done.status, done.errors) == (0, "")
        assert done.output == "# No changes in the config.\n# No changes in the units advertised on this node.\n"

    async def test_without_gpus_only_settings_are_compared(self, tmp_path: Path) -> None:
        """What was not compared is said."""
        old = tmp_path / "old.yaml"
        old.write_text(OLD)
        done = await gpushare(
            "check-config", written(tmp_path, CONFIG), "--against", old, environment=without_library(tmp_path)
        )
        assert done.status == 0
        assert "sharing.timeSlicing: added\n" in done.output
        assert "advertised" not in done.output
        assert "# Checked the file only" in done.errors

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
            assert (done.status, done.output) == (1, "")
            assert f"  {old}:{place}" in done.errors

    async def test_what_changes_nothing_is_noted(self, node: FakeNvml, tmp_path: Path) -> None:
        """Settings that are accepted and not served are named beside the result."""
        config = written(tmp_path, "version: v1\nflags:\n  gfd:\n    oneshot: true\n")
        done = await gpushare("check-config", config, environment=node.environment)
        assert done.status == 0
        assert "# Warning: flags.gfd belongs to GPU feature discovery and has no effect here" in done.errors

    async def test_a_missing_file_is_told(self, tmp_path: Path) -> None:
        """The message names the file."""
        done = await gpushare("check-config", tmp_path / "nowhere.yaml")
        assert done.status == 1
        assert f"{tmp_path / 'nowhere.yaml'}: there is no such file" in done.errors


class TestList:
    """`gpushare list`."""

    async def test_who_holds_what(self, node: FakeNvml, kubelet: EmbeddedKubelet, tmp_path: Path) -> None:
        """Table and JSON show each GPU, what it is advertised as, and which container holds how much of it."""
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
        assert (table.status, table.errors, data.status, data.errors) == (0, "", 0, "")
        gpus = json.loads(data.output)["gpus"]
        assert [(gpu["uuid"], gpu["resource"], gpu["units"], gpu["used"]) for gpu in gpus] == [
            (node.gpus[0].uuid, GPU_MEM, 40, 5),
            (node.gpus[1].uuid, SHARED_GPU, 4, 1),
            (node.gpus[2].uuid, "nvidia.com/gpu", 1, 0),
        ]
        assert gpus[0]["uses"] == [{"namespace": "team", "pod": "inference", "container": "model", "units": 5}]
        lines = [line.split() for line in table.output.splitlines()]
        assert [line[-1] for line in lines[1:4]] == [gpu.uuid for gpu in node.gpus]
        assert [line[-3] for line in lines[1:4]] == ["5/40", "1/4", "0/1"]
        assert lines[-2:] == [
            ["0", "team", "inference", "model", GPU_MEM, "5"],
            ["1", "team", "inference", "proxy", SHARED_GPU, "1"],
        ]

    async def test_without_a_kubelet_the_gpus_are_listed(self, node: FakeNvml, tmp_path: Path) -> None:
        """What nobody can tell is said not to be known; the rest is printed, and that is a success."""
        options = ("--pod-resources-socket", tmp_path / "kubelet.sock")
        table, data = await asyncio.gather(
            gpushare("list", *options, environment=node.environment),
            gpushare("list", *options, "-o", "json", environment=node.environment),
        )
        assert (table.status, data.status) == (0, 0)
        assert table.errors == data.errors
        assert table.errors.startswith("gpushare: cannot list the pods that hold units: ")
        assert [line.split()[-2] for line in table.output.splitlines()[1:]] == ["?/40", "?/15", "?/40"]
        assert [gpu["uses"] for gpu in json.loads(data.output)["gpus"]] == [None] * 3

    async def test_a_card_that_does_not_answer_is_listed(self, node: FakeNvml, tmp_path: Path) -> None:
        """What is left out is shown with the reason, in both forms."""
        node.fail(1, ALL_FUNCTIONS, ErrorCode.GPU_IS_LOST)
        options = ("--pod-resources-socket", tmp_path / "kubelet.sock")
        table, data = await asyncio.gather(
            gpushare("list", *options, environment=node.environment),
            gpushare("list", *options, "-o", "json", environment=node.environment),
        )
        assert "unresponsive: GPU is lost" in table.output
        assert json.loads(data.output)["failed"] == [
            {"index": 1, "reason": "GPU is lost", "uuid": None, "lost": True, "number": None}
        ]

    async def test_a_node_without_gpus_is_a_failure(self, tmp_path: Path) -> None:
        """There is nothing to list, which is told on one line."""
        done = await gpushare("list", environment=without_library(tmp_path))
        assert (done.status, done.output) == (1, "")
        assert done.errors.startswith("gpushare: NVML cannot be used: ")
        assert len(done.errors.splitlines()) == 1


class TestColours:
    """Colours are for people at a terminal, and not for those who set NO_COLOR."""

    @pytest.mark.parametrize(
        ("terminal", "environment", "coloured"),
        [(True, {}, True), (True, {"NO_COLOR": "1"}, False), (False, {}, False)],
        ids=["terminal", "NO_COLOR", "file"],
    )
    def test_in_the_log(self, environment: dict[str, str], *, terminal: bool, coloured: bool) -> None:
        """A log for people that goes into a file is text and nothing else."""
        arguments = ("run", "--log-format", "console", "--config-file", "/nowhere")
        text = printed(arguments, environment, terminal=terminal)
        assert "start_failed" in text
        assert (CONTROL_SEQUENCE in text) is coloured

    def test_in_tables(self, tmp_path: Path) -> None:
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

    def test_streams_that_are_missing_are_nobodys_files(self, tmp_path: Path) -> None:
        """A command that was started without standard streams neither fails nor writes into other files."""
        gpus = tmp_path / "gpus.yaml"
        gpus.write_text("gpus: [{memory: 16GiB}]\n")
        assert self.run("<&- >&- 2>&-", "list", "--simulate", str(gpus)).returncode == 0


def test_the_root_of_mps_is_an_absolute_path() -> None:
    """A relative path would name another directory in each container."""
    result = CliRunner().invoke(commands, ["mps", "--mps-root", "relative"])
    assert (result.exit_code, "expected an absolute path" in result.output) == (2, True)

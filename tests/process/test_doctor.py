"""`gpushare doctor`, run as people run it: its output, its exit status and its archive."""

import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpushare_plugin.cli.commands.node.doctor import NODE_IS_WRONG
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.subjects.cards import read_cards, why_without
from gpushare_plugin.testing.hosts import (
    DRIVER,
    GPUS,
    K3S,
    OPERATOR_25_10,
    WITHOUT_GPU,
    HostDescription,
    built,
    specification,
)
from gpushare_plugin.testing.nvml import ENVIRONMENT_VARIABLE, FakeNvml
from tests.process.daemon import Argument, Finished, gpushare

UNSET = {"NODE_NAME": "", "POD_RESOURCES_SOCKET": ""}
"""Variables without an effect, which have one in other tests."""


@pytest.fixture
def nvml() -> Iterator[FakeNvml]:
    """Run NVML of a node with the described GPUs."""
    with FakeNvml(GPUS, driver_version=DRIVER) as node:
        yield node


async def asked(
    host: HostDescription,
    folder: Path,
    *arguments: Argument,
    nvml: FakeNvml | None = None,
    variables: Mapping[str, str] | None = None,
) -> Finished:
    """Run doctor on a described node, where only the node's own files lead to NVML's library."""
    described = {ENVIRONMENT_VARIABLE: nvml.environment[ENVIRONMENT_VARIABLE]} if nvml else {}
    environment = {**UNSET, **described, **(variables or {})}
    with built(host, folder, nvml.library if nvml else None):
        return await gpushare("doctor", "--root", folder, *arguments, environment=environment)


async def test_a_node_that_works_is_right(short_path: Path, nvml: FakeNvml) -> None:
    """The real pynvml finds the library below the root, no line is wrong, and the exit status is 0."""
    done = await asked(K3S, short_path / "node", nvml=nvml)
    assert (done.status, done.errors) == (0, "")
    assert f"right          NVML: driver {DRIVER}; GPUs: 0 NVIDIA A100-SXM4-40GB" in done.output
    assert " 0 wrong, " in done.output
    assert "What to do" not in done.output


async def test_a_node_that_does_not_work_is_told_by_the_exit_status(short_path: Path, nvml: FakeNvml) -> None:
    """Each wrong line has its remedy below, in the order of the lines; NVML is that of the operator's driver."""
    done = await asked(OPERATOR_25_10, short_path / "node", nvml=nvml)
    assert f"right          NVML: driver {DRIVER}" in done.output
    assert done.status == NODE_IS_WRONG == 3
    assert "WRONG          CDI specifications: " in done.output
    assert "What to do, in this order:\n1. CDI specifications: Do one of these, the best here first. (a)" in done.output
    assert "\nThen run gpushare doctor again.\n" in done.output


async def test_commands_of_remedies_have_the_name_of_the_node(short_path: Path) -> None:
    """The name is that of the option or of NODE_NAME; without either, people fill in the name."""
    beside = WITHOUT_GPU + HostDescription(sockets=("/var/lib/kubelet/device-plugins/nvidia-gpu.sock",))
    done = await asked(beside, short_path / "one", "--node-name", "gpu-1")
    assert "kubectl label node gpu-1 gpu-" in done.output
    done = await asked(beside, short_path / "two")
    assert "node NODE " in done.output


async def test_a_command_to_check_with_has_the_options_that_were_given(short_path: Path, nvml: FakeNvml) -> None:
    """The command that judges by CDI is the one that was run, but for the strategy and an archive that is written."""
    config, bundle = short_path / "a config.yaml", short_path / "bundle.tar.gz"
    config.write_text("version: v1\n")
    options = ("--config-file", config, "--bundle", bundle, "--node-name=gpu-1", "--device-list-strategy=envvar")
    done = await asked(OPERATOR_25_10, short_path / "node", *options, nvml=nvml)
    assert f"\nWrote {bundle} (" in done.output
    check = f"--device-list-strategy=cdi-cri --root {short_path}/node --config-file '{config}' --node-name=gpu-1"
    assert f"Check with `gpushare doctor {check}`" in done.output


async def test_the_config_that_counts_is_named(short_path: Path) -> None:
    """A file by its path; without a file, the defaults count, and options in any case."""
    done = await asked(WITHOUT_GPU, short_path / "one", "--device-list-strategy=cdi-cri")
    assert "config: the node is judged by the defaults (no config file): deviceListStrategy cdi-cri\n" in done.output
    file = short_path / "config.yaml"
    file.write_text("version: v1\n")
    done = await asked(WITHOUT_GPU, short_path / "two", "--config-file", file)
    assert f"config: the node is judged by {file}: deviceListStrategy envvar\n" in done.output


async def test_a_config_that_names_gpus_which_the_node_lacks_is_wrong(short_path: Path, nvml: FakeNvml) -> None:
    """The daemon would reject the config in the same words; isolations are judged by other lines."""
    file = short_path / "config.yaml"
    entry = "{name: nvidia.com/gpu, replicas: 4, devices: [0, 5]}"
    file.write_text(f"version: v1\nsharing: {{timeSlicing: {{resources: [{entry}]}}}}\ndra: {{devices: [6]}}\n")
    done = await asked(K3S, short_path / "node", "--config-file", file, nvml=nvml)
    assert done.status == NODE_IS_WRONG
    assert "WRONG          config: the node is judged by" in done.output
    assert (
        'sharing.timeSlicing.resources[0].devices: "5" matches no GPU; GPUs that this entry can share: ' in done.output
    )
    assert 'dra.devices: "6" matches no GPU' in done.output


async def test_the_config_decides_what_a_node_needs(short_path: Path, nvml: FakeNvml) -> None:
    """Options and variables are those of the daemon: with CDI, the specification of K3s is used."""
    mended = K3S + HostDescription({"/etc/cdi/nvidia.yaml": specification()})
    unused = await asked(mended, short_path / "one", nvml=nvml)
    assert "devices that the config does not use: nvidia.com/gpu (5)" in unused.output
    done = await asked(mended, short_path / "two", "--device-list-strategy=cdi-cri", nvml=nvml)
    assert "5 devices for the config (deviceListStrategy cdi-cri), of /etc/cdi/nvidia.yaml" in done.output
    again = await asked(mended, short_path / "three", nvml=nvml, variables={"DEVICE_LIST_STRATEGY": "cdi-cri"})
    assert again.output == done.output
    wrong = await asked(K3S, short_path / "four", "--device-list-strategy=volume-mounts", nvml=nvml)
    assert wrong.status == NODE_IS_WRONG


async def test_programs_get_json(short_path: Path, nvml: FakeNvml) -> None:
    """Every line has its subject, one of three judgements, what was found, and with wrong a remedy; counts agree."""
    done = await asked(OPERATOR_25_10, short_path / "node", "-o", "json", nvml=nvml)
    report = json.loads(done.output)
    assert report["version"] == 1
    judgements = [line["judgement"] for line in report["lines"]]
    assert set(judgements) == {"right", "wrong", "notLookedAt"}
    assert [report[key] for key in ("right", "wrong", "notLookedAt")] == [
        judgements.count(each) for each in ("right", "wrong", "notLookedAt")
    ]
    assert all(set(line) == {"subject", "judgement", "found", "remedy", "improvement"} for line in report["lines"])
    assert all(bool(line["remedy"]) == (line["judgement"] == "wrong") for line in report["lines"])


async def test_the_archive_is_written_beside_the_report(short_path: Path, nvml: FakeNvml) -> None:
    """The last line says where it is; JSON stays JSON; a second archive of the same name is refused."""
    bundle = short_path / "bundle.tar.gz"
    done = await asked(OPERATOR_25_10, short_path / "one", "--bundle", bundle, "-o", "json", nvml=nvml)
    assert done.status == NODE_IS_WRONG
    assert json.loads(done.output)["wrong"] == 1
    assert done.errors.splitlines()[-1].startswith(f"Wrote {bundle} ({bundle.stat().st_size} bytes), without names of ")
    with tarfile.open(bundle) as archive:
        assert len(archive.getnames()) == 3
    done = await asked(OPERATOR_25_10, short_path / "two", "--bundle", bundle, nvml=nvml)
    assert done.status == 1
    assert f"{bundle} exists already" in done.errors
    assert "What to do, in this order:" in done.output


async def test_doctor_changes_nothing(short_path: Path, nvml: FakeNvml) -> None:
    """After a look, every file of the node is as it was, and none has been added."""
    folder = short_path / "node"
    with built(OPERATOR_25_10, folder, nvml.library):
        before = snapshot(folder)
        done = await gpushare("doctor", "--root", folder, environment={**nvml.environment, **UNSET})
        assert done.status == NODE_IS_WRONG
        assert snapshot(folder) == before


def snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return mode, size and time of change of all that is below a directory."""
    paths = [Path(where, name) for where, folders, files in os.walk(folder) for name in (*folders, *files)]
    states = {path: path.lstat() for path in paths}
    return {str(path): (state.st_mode, state.st_size, state.st_mtime_ns) for path, state in states.items()}


async def test_a_node_without_gpu_is_not_called_wrong(short_path: Path) -> None:
    """Neither is a described node without GPUs, nor the machine of the test, where that has none."""
    done = await asked(WITHOUT_GPU, short_path / "node")
    assert (done.status, done.errors) == (0, "")
    host = HostRoot(Path("/"))
    if why_without(read_cards(host), host.line("/sys/module/nvidia/version")):
        own = await gpushare("doctor", "--root", "/", environment=UNSET)
        assert (own.status, " 0 wrong, " in own.output) == (0, True), own.output


async def test_a_root_that_is_none_is_refused(short_path: Path) -> None:
    """A mistyped root is an error, not a node on which nothing was found."""
    done = await gpushare("doctor", "--root", short_path / "nowhere")
    assert done.status == 1
    assert "expected the root of the node's file system" in done.errors


async def test_a_config_with_mistakes_is_refused(short_path: Path) -> None:
    """What a node needs is not known then; the mistakes are told as by the daemon."""
    done = await asked(WITHOUT_GPU, short_path / "node", "--cdi-kind=nonsense")
    assert done.status == 1
    assert "nonsense" in done.errors

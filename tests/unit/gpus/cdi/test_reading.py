"""Tests of `gpushare_plugin.gpus.cdi.reading`."""

import json
import os
from pathlib import Path

import pytest

from gpushare_plugin.core.cdi import CdiDevices
from gpushare_plugin.core.driver_limits import LIMITS_HOOK
from gpushare_plugin.gpus.cdi.reading import LARGEST_FILE, MOST_FILES, SpecReader
from gpushare_plugin.testing.hosts import DRIVER
from tests.hosts import UUIDS, Host


def spec(*names: str, kind: str = "nvidia.com/gpu", driver: str = DRIVER) -> dict[str, object]:
    """Return a specification with these devices, whose containers get the libraries of a driver."""
    mount = {"hostPath": f"/usr/lib64/libcuda.so.{driver}", "containerPath": f"/usr/lib64/libcuda.so.{driver}"}
    edits = {"mounts": [mount]}
    return {"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": each, "containerEdits": edits} for each in names]}


def written(folder: Path, name: str, content: object) -> Path:
    """Write a file into a directory of specifications, as JSON unless it is text."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return the two directories of a host, which do not exist yet."""
    return tmp_path / "etc", tmp_path / "run"


def found(folders: tuple[Path, ...]) -> CdiDevices:
    """Return what is found in directories."""
    return SpecReader(folders).devices(DRIVER)


def test_the_devices_of_a_node_with_nvidias_toolkit_are_found(tmp_path: Path) -> None:
    """Devices have the kind of their specification; a directory that does not exist is one without specifications."""
    host = Host("kubeadm", tmp_path)
    devices = found(host.spec_dirs)
    assert devices.unusable == ()
    names = ["0", UUIDS[0], "1", UUIDS[1], "all"]
    assert devices.files == {f"nvidia.com/gpu={name}": str(host.spec_dirs[1] / "nvidia.yaml") for name in names}


def test_a_node_with_nvidias_operator_has_no_device_for_a_gpu(tmp_path: Path) -> None:
    """The operator's specification has one device, for its own pods."""
    assert list(found(Host("operator", tmp_path).spec_dirs).files) == ["management.nvidia.com/gpu=all"]


def hook(*arguments: object) -> dict[str, object]:
    """Return a hook with arguments."""
    return {"hookName": "createRuntime", "path": "/usr/bin/nvidia-cdi-hook", "args": list(arguments)}


@pytest.mark.parametrize(
    ("of_first", "of_all", "limiting"),
    [
        ([hook("nvidia-cdi-hook", LIMITS_HOOK, "--gpu-id", "GPU-1")], [], ["0"]),
        ([], [hook("nvidia-ctk", "hook", LIMITS_HOOK)], ["0", "1"]),
        ([hook("nvidia-cdi-hook", "update-ldcache")], [], []),
        ([{"hookName": "createRuntime", "path": f"/usr/bin/{LIMITS_HOOK}"}, 7, {"args": LIMITS_HOOK}], None, []),
    ],
)
def test_devices_with_the_hook_of_driver_limits_are_told_apart(
    folders: tuple[Path, Path], of_first: object, of_all: object, limiting: list[str]
) -> None:
    """The hook is named by an argument, of the device itself or of the whole specification; nothing else counts."""
    document = spec("0", "1")
    document["containerEdits"] = {"hooks": of_all}
    document["devices"] = [{"name": "0", "containerEdits": {"hooks": of_first}}, {"name": "1"}]
    written(folders[0], "nvidia.json", document)
    assert found(folders).limiting == {f"nvidia.com/gpu={name}" for name in limiting}
    written(folders[1], "nvidia.json", spec("0", "1"))
    assert found(folders).limiting == frozenset(), "a device of a later directory counts, without its hook"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", "{", "it is not valid JSON"),
        ("a.yaml", "a: [", "it is not valid YAML"),
        ("a.json", "[" * 100_000, "it is not valid JSON"),
        ("a.yaml", "[" * 100_000, "it is not valid YAML"),
        ("a.yaml", "- " * 100_000, "it is not valid YAML"),
        ("a.json", "[]", "its kind is None"),
        ("a.json", spec("0", kind="gpu"), "its kind is 'gpu', expected <vendor>/<class>"),
        ("a.json", spec(), "it lists no devices"),
        ("a.json", spec("a b"), "it lists no devices, or devices without a proper name"),
        ("a.json", {"kind": "a/b", "devices": ["0"]}, "it lists no devices, or devices without a proper name"),
        ("a.json", " " * LARGEST_FILE + "{}", f"it has more than {LARGEST_FILE} bytes"),
    ],
)
def test_a_bad_file_is_left_out_with_a_reason(
    folders: tuple[Path, Path], name: str, content: object, reason: str
) -> None:
    """A file that is no specification takes no other device away, and its name and its fault are told."""
    file = written(folders[0], name, content)
    written(folders[0], "good.json", spec("0"))
    devices = found(folders)
    assert list(devices.files) == ["nvidia.com/gpu=0"]
    (told,) = devices.unusable
    assert told.startswith(f"the CDI specification {file} is left out: {reason}")


def test_a_pipe_is_left_out(folders: tuple[Path, Path]) -> None:
    """Reading a pipe would wait for a writer."""
    folders[0].mkdir()
    os.mkfifo(folders[0] / "a.json")
    (told,) = found(folders).unusable
    assert "not a regular file" in told


def test_other_files_are_no_specifications(folders: tuple[Path, Path]) -> None:
    """The container runtime reads files that end in .json or .yaml, and no folders."""
    written(folders[0], "a.yml", spec("0"))
    (folders[0] / "b.json").mkdir()
    assert found(folders) == CdiDevices(tuple(map(str, folders)))


def test_a_directory_of_thousands_of_files_is_read_in_part(folders: tuple[Path, Path]) -> None:
    """The first hundred files by name are read, and the number of files is told."""
    for number in range(MOST_FILES + 1):
        written(folders[0], f"{number:03}.json", spec(str(number)))
    devices = found(folders)
    assert len(devices.files) == MOST_FILES
    assert devices.unusable[0].startswith(f"{folders[0]} has 101 CDI specifications, of which the first 100")


def test_a_later_directory_counts_more(folders: tuple[Path, Path]) -> None:
    """Of two specifications of a device, the container runtime uses that in the later directory."""
    written(folders[0], "a.json", spec("0", "1"))
    later = written(folders[1], "a.json", spec("0"))
    assert found(folders).files["nvidia.com/gpu=0"] == str(later)
    assert found(folders).unusable == ()


def test_a_device_in_two_files_of_a_directory_cannot_be_used(folders: tuple[Path, Path]) -> None:
    """The container runtime refuses the device, and also that of an earlier directory; other devices are unaffected."""
    written(folders[0], "a.json", spec("0", "2"))
    first = written(folders[1], "a.json", spec("0", "1"))
    second = written(folders[1], "b.json", spec("0"))
    devices = found(folders)
    assert sorted(devices.files) == ["nvidia.com/gpu=1", "nvidia.com/gpu=2"]
    (told,) = devices.unusable
    assert told.startswith(f"{first} and {second} both describe the CDI devices nvidia.com/gpu=0, which")


def test_a_specification_of_another_driver_cannot_be_used(folders: tuple[Path, Path]) -> None:
    """After an upgrade of the driver, the files of an old specification are gone, and containers could not start."""
    written(folders[0], "a.json", spec("0"))
    old = written(folders[1], "a.json", spec("0", driver="535.54.03"))
    devices = found(folders)
    assert devices.files == {}
    (told,) = devices.unusable
    assert told == (
        f"the CDI specification {old} is outdated: it gives containers the CUDA library of the driver 535.54.03, and "
        f"the driver is {DRIVER}; generate it again"
    )


def test_no_specification_is_outdated_where_the_driver_does_not_report_its_version(folders: tuple[Path, Path]) -> None:
    """Nothing says then that the libraries are those of another driver, and containers get the devices."""
    written(folders[0], "a.json", spec("0"))
    devices = SpecReader(folders).devices("")
    assert (list(devices.files), devices.unusable) == (["nvidia.com/gpu=0"], ())


def test_a_changed_file_is_read_again(folders: tuple[Path, Path]) -> None:
    """A reader keeps what it has read, and sees a file that was replaced, and one that is gone."""
    reader = SpecReader(folders)
    file = written(folders[0], "a.json", spec("0"))
    assert list(reader.devices(DRIVER).files) == ["nvidia.com/gpu=0"]
    written(folders[0], "new", spec("00")).replace(file)
    assert list(reader.devices(DRIVER).files) == ["nvidia.com/gpu=00"]
    file.unlink()
    assert reader.devices(DRIVER).files == {}

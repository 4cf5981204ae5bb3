"""Tests of `gpushare_plugin.mps.exchange`."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.gpus.exchange import ExchangeError, read_message, write_message
from gpushare_plugin.mps.exchange import (
    MOST_CLIENTS,
    ListedClient,
    MpsGpu,
    MpsNamespace,
    MpsRoot,
    MpsSettings,
    MpsStatus,
    is_uuid,
)
from tests.unit.mps.roots import UUIDS

NAMESPACE = '{"name": "c_1", "memory_limit_mib": 1}'
SETTINGS = MpsSettings(gpus=(MpsGpu(uuid=UUIDS[0], memory_limit_mib=4096), MpsGpu(uuid=UUIDS[1])))


@given(
    st.dictionaries(st.sampled_from(UUIDS), st.none() | st.integers(min_value=1)),
    st.none() | st.integers(min_value=1, max_value=100),
)
def test_written_settings_are_read(limits: dict[str, int | None], percentage: int | None) -> None:
    """Any settings come back as they went."""
    gpus = tuple(MpsGpu(uuid=uuid, memory_limit_mib=limit) for uuid, limit in limits.items())
    settings = MpsSettings(gpus=gpus, active_thread_percentage=percentage)
    assert MpsSettings.model_validate_json(settings.model_dump_json()) == settings


def test_a_file_is_replaced_whole(root: MpsRoot) -> None:
    """A reader that has the old file open reads it to its end; nothing else is left behind."""
    write_message(root.wanted, SETTINGS)
    with root.wanted.open() as old:
        write_message(root.wanted, MpsSettings())
        assert MpsSettings.model_validate_json(old.read()) == SETTINGS
    assert read_message(root.wanted, MpsSettings) == MpsSettings()
    assert [path.name for path in root.path.glob("*wanted*")] == ["wanted.json"]
    assert not list(root.path.glob(".*"))


def test_a_node_full_of_containers_fits(root: MpsRoot) -> None:
    """Otherwise no GPU would count as served: as many namespaces and clients as are told, each client with a doubt."""
    names = [f"c_{number:016x}" for number in range(MOST_CLIENTS)]
    namespaces = tuple(MpsNamespace(name=name, memory_limit_mib=1 << 20) for name in names)
    doubt = "it uses the namespace default of the MPS server gpushare, which has no limit"
    clients = tuple(ListedClient(pid=1 << 22, server="gpushare", namespace=name, doubt=doubt) for name in names)
    settings = SETTINGS.model_copy(update={"protocol": 3, "namespaces": namespaces})
    status = MpsStatus(in_force=settings, clients=clients, clients_asked_at=1.0)
    write_message(root.wanted, settings)
    write_message(root.status, status)
    assert read_message(root.wanted, MpsSettings) == settings
    assert read_message(root.status, MpsStatus) == status


def test_a_missing_file_is_no_error(root: MpsRoot) -> None:
    """Nobody wrote anything yet."""
    assert read_message(root.wanted, MpsSettings) is None


def test_keys_of_a_later_version_are_passed_over(root: MpsRoot) -> None:
    """Either half may be upgraded first, so what is not known does not matter."""
    root.wanted.write_text('{"version": 1, "gpus": [{"uuid": "' + UUIDS[0] + '", "colour": "red"}], "shape": 4}')
    assert read_message(root.wanted, MpsSettings) == MpsSettings(gpus=(MpsGpu(uuid=UUIDS[0]),))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "JSON"),
        ("[]", "the whole file"),
        ('{"version": 2}', "version: Input should be 1"),
        ('{"gpus": [{"uuid": "0"}]}', "gpus.0.uuid"),
        ('{"gpus": [{"uuid": "GPU-1,GPU-2"}]}', "gpus.0.uuid"),
        (f'{{"gpus": [{{"uuid": "{UUIDS[0]}", "memory_limit_mib": 0}}]}}', "memory_limit_mib"),
        (f'{{"gpus": [{{"uuid": "{UUIDS[0]}", "memory_limit_mib": "1"}}]}}', "memory_limit_mib"),
        (f'{{"gpus": [{{"uuid": "{UUIDS[0]}"}}, {{"uuid": "{UUIDS[0]}"}}]}}', "more than once"),
        ('{"active_thread_percentage": 101}', "active_thread_percentage"),
        ('{"protocol": 4}', "protocol"),
        ('{"namespaces": [{"name": "c_1"}]}', "memory_limit_mib"),
        ('{"namespaces": [{"name": "../c_1", "memory_limit_mib": 1}]}', "name"),
        (f'{{"namespaces": [{NAMESPACE}, {NAMESPACE}]}}', "more than once"),
        (" " * (MpsSettings.largest + 1), "which gpushare never writes"),
    ],
)
def test_any_other_content_is_an_error_with_words(root: MpsRoot, content: str, words: str) -> None:
    """The message names the file and what is wrong in it."""
    root.wanted.write_text(content)
    with pytest.raises(ExchangeError) as caught:
        read_message(root.wanted, MpsSettings)
    assert str(root.wanted) in str(caught.value)
    assert words in str(caught.value)


def _pipe(file: Path) -> None:
    os.mkfifo(file)


def _link(file: Path) -> None:
    target = file.with_name("elsewhere")
    target.write_text("{}")
    file.symlink_to(target)


@pytest.mark.parametrize("make", [_pipe, _link, Path.mkdir])
def test_a_pipe_or_a_link_in_place_of_a_file_is_not_followed(root: MpsRoot, make: object) -> None:
    """A pipe does not make us wait, a link does not lead us elsewhere, a directory is an error."""
    assert callable(make)
    make(root.wanted)
    with pytest.raises(ExchangeError, match="cannot be read"):
        read_message(root.wanted, MpsSettings)


def test_a_file_that_cannot_be_written_is_an_error(root: MpsRoot) -> None:
    """The message names the file."""
    root.wanted.mkdir()
    with pytest.raises(ExchangeError, match=r"wanted\.json cannot be written"):
        write_message(root.wanted, SETTINGS)


def test_a_long_path_is_refused() -> None:
    """Sockets below the root must have paths that the kernel takes."""
    MpsRoot(Path("/" + "x" * 82)).refuse_long_path()
    with pytest.raises(ExchangeError, match="at most 83 are allowed"):
        MpsRoot(Path("/" + "x" * 83)).refuse_long_path()


def test_a_uuid_is_that_of_a_gpu() -> None:
    """Indices, parts of MIG and endings of lines are none."""
    assert is_uuid(UUIDS[0])
    assert not any(map(is_uuid, ["0", "", f"{UUIDS[0]}\n", UUIDS[0].replace("GPU", "MIG"), UUIDS[0][:-1]]))

"""Tests of how traces are read."""

from pathlib import Path

import pytest

from gpushare_plugin.base.errors import GpushareError
from gpushare_plugin.packing.pod_kind import PodKind
from gpushare_plugin.packing.rows import NodeKind
from gpushare_plugin.simulator.csv_file import MOST_LINES
from gpushare_plugin.simulator.trace import Trace, read_nodes, read_pods
from tests.unit.simulator.traces import a_trace, written

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,8000,1024,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time\n"
    "p0,12000,16384,1,455,V100M16|V100M32,0\np1,6000,12288,2,1000,,0\np2,100,1,0,0,,7\n"
)


def read(directory: Path, nodes: str = NODES, pods: str = PODS) -> Trace:
    """Read a trace from two texts, whose characters are written as one byte each."""
    (directory / "nodes.csv").write_text(nodes, encoding="latin-1")
    (directory / "pods.csv").write_text(pods, encoding="latin-1")
    return Trace(read_nodes(directory / "nodes.csv"), read_pods(directory / "pods.csv"))


def test_columns_mean_what_they_mean_in_the_published_trace(tmp_path: Path) -> None:
    """Each column is read by its name, and a part of a GPU is rounded up to percent."""
    trace = read(tmp_path)
    assert trace.nodes == (NodeKind(64_000, 262_144, 2, "P100"), NodeKind(8_000, 1_024, 0))
    assert trace.pods == (
        PodKind(12_000, 16_384, 1, 46, frozenset({"V100M16", "V100M32"})),
        PodKind(6_000, 12_288, 2),
        PodKind(100, 1, 0),
    )
    assert (trace.gpus, trace.demand) == (2, 2.46)


def test_pods_of_a_file_without_models_accept_any(tmp_path: Path) -> None:
    """Some published files have no column `gpu_spec`."""
    without = "cpu_milli,memory_mib,num_gpu,gpu_milli\n12000,16384,1,1000\n"
    assert read(tmp_path, pods=without).pods == (PodKind(12_000, 16_384, 1),)


def test_a_byte_order_mark_spaces_and_empty_lines_change_nothing(tmp_path: Path) -> None:
    """Files of spreadsheet programs and files that people wrote are read as the published ones."""
    as_written = "\xef\xbb\xbf" + NODES.removeprefix("sn,").replace(",", " , ").replace("n0 , ", "").replace(
        "n1 , ", ""
    )
    assert read(tmp_path, as_written.replace("\n", "\r\n\r\n"), PODS) == read(tmp_path)


def test_a_pod_without_gpus_needs_no_part_of_one(tmp_path: Path) -> None:
    """The column may be empty there."""
    assert read(tmp_path, pods=PODS.replace("p2,100,1,0,0", "p2,100,1,0,")) == read(tmp_path)


def test_a_trace_that_is_written_is_read_as_the_same(tmp_path: Path) -> None:
    """What the tests write is what they mean."""
    nodes, pods = written(a_trace(), tmp_path)
    assert Trace(read_nodes(nodes), read_pods(pods)) == a_trace()


@pytest.mark.parametrize(
    ("nodes", "pods", "said"),
    [
        (NODES.replace("64000", "-1"), PODS, "nodes.csv:2: found cpu_milli '-1', expected a whole number from 0 to"),
        (NODES.replace(",2,", ",65,"), PODS, "nodes.csv:2: found gpu '65', expected a whole number from 0 to 64"),
        (NODES.replace("gpu,", "gpus,"), PODS, "nodes.csv:1: found no column gpu, expected the names of the columns"),
        ("", PODS, "nodes.csv:1: found no column cpu_milli, memory_mib, gpu, model, expected the names"),
        (NODES.replace("sn", "gpu"), PODS, "nodes.csv:1: found the column gpu twice, expected each column once"),
        (NODES, PODS + "p3,100,1,1,1000\n", "pods.csv:5: found 5 values, expected 7, one for each column"),
        (NODES, PODS + "p3,100,1,1,1000,a,b,0\n", "pods.csv:5: found 8 values, expected 7, one for each column"),
        (NODES, PODS + '"p3,100,1,1,1000,,0\n', "pods.csv:5: found no CSV, expected other quotes or ends of lines: "),
        (NODES, PODS + "p3,100,1,0,-500,,0\n", "pods.csv:5: found gpu_milli '-500', expected a whole number from 0"),
        (
            NODES,
            PODS + "p3,100,1,0,500,,0\n",
            "pods.csv:5: found gpu_milli 500 with num_gpu 0, expected 0 without GPUs",
        ),
        (NODES, PODS + "p3,\xff,1,1,1000,,0\n", "pods.csv:5: found byte 0xff in value 2, expected text in UTF-8"),
        (NODES + "\n" * MOST_LINES, PODS, "nodes.csv: found more than 2,000,000 lines; simulate a part of them"),
        (NODES, PODS.replace(",455,", ",1001,"), "pods.csv:2: found gpu_milli '1001', expected a whole number from 0"),
        (
            NODES,
            PODS.replace(",455,", ",0,"),
            "pods.csv:2: found gpu_milli 0 with num_gpu 1, expected 0 without GPUs, 1 to 1000",
        ),
        (NODES, PODS.replace("2,1000", "2,500"), "pods.csv:3: found gpu_milli 500 with num_gpu 2"),
        (
            NODES,
            PODS.replace("12288", "9" * 400),
            "pods.csv:3: found memory_mib '9999999999999999999999999999999999999999…', expected",
        ),
        (NODES.replace(",2,", ",0,"), PODS, "nodes.csv: found no node with a GPU"),
        (NODES, PODS.split("p0", maxsplit=1)[0], "pods.csv: found no pod that asks for a GPU"),
        (NODES + "x" * 5_000, PODS, "nodes.csv:4: found a line of more than 4,096 bytes, expected CSV"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_place(tmp_path: Path, nodes: str, pods: str, said: str) -> None:
    """A mistake is told with the file, the line, what was found and what was expected."""
    with pytest.raises(GpushareError) as refused:
        read(tmp_path, nodes, pods)
    assert said in str(refused.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    """The path is in the message, and no traceback is."""
    with pytest.raises(GpushareError, match=r"cannot read .*nodes\.csv"):
        read_nodes(tmp_path / "nodes.csv")

"""Tests that what others read is filled in: a field with a default that nobody fills shows its default for ever."""

import ast
from pathlib import Path
from typing import Any

import pytest

import gpushare_plugin
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord
from gpushare_plugin.observe.cluster.claims import ClaimUse
from gpushare_plugin.observe.cluster.explanation import Explanation
from gpushare_plugin.observe.cluster.report import (
    ClusterReport,
    GpuUse,
    NodeUse,
    ResourceUse,
    SliceUse,
    UnofferedGpu,
    WaitingUse,
)
from gpushare_plugin.observe.metrics.extender import ExtenderView
from gpushare_plugin.observe.metrics.node import View
from gpushare_plugin.observe.metrics.partitioner import PartitionerView
from gpushare_plugin.observe.metrics.web import WebView

(ROOT,) = map(Path, gpushare_plugin.__path__)
CONSTANT = {"version", "gpushare"}
"""Fields that have the same value in all objects."""


@pytest.mark.parametrize(
    ("files", "made"),
    [
        ("node/daemon.py", View),
        ("sharing/snapshot.py node/node.py node/status.py", Snapshot),
        ("extender/service.py", ExtenderView),
        ("partitioner/rounds.py partitioner/service.py", PartitionerView),
        ("web/in_cluster.py", WebView),
        ("ledger/node_record.py", NodeRecord),
        ("ledger/node_record.py", GpuRecord),
        *(
            ("observe/cluster/report.py observe/cluster/by_claim.py", each)
            for each in (NodeUse, ResourceUse, GpuUse, UnofferedGpu, ClusterReport)
        ),
        ("observe/cluster/claims.py", ClaimUse),
        ("observe/cluster/explanation.py observe/cluster/verdict.py", Explanation),
        *(("observe/cluster/report.py", each) for each in (SliceUse, WaitingUse)),
    ],
    ids=lambda each: each.__name__ if isinstance(each, type) else "",
)
def test_every_field_is_filled(files: str, made: Any) -> None:
    """The module that makes such an object gives each field a value, at once or when it replaces fields of it."""
    names = list(made.__struct_fields__)
    filled = set(CONSTANT)
    for node in (node for file in files.split() for node in ast.walk(ast.parse((ROOT / file).read_text()))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == made.__name__:
            filled |= {*names[: len(node.args)], *(each.arg for each in node.keywords if each.arg)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "replace":
            filled |= {each.arg for each in node.keywords if each.arg}
        elif isinstance(node, ast.Dict):  # what `replace` gets as **fields
            filled |= {str(each.value) for each in node.keys if isinstance(each, ast.Constant)}
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            filled |= {str(node.slice.value)} if isinstance(node.ctx, ast.Store) else set()
    assert [name for name in names if name not in filled] == [], f"{files} does not fill them in {made.__name__}"

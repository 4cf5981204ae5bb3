"""The map and all nodes as one file, for tickets: the file loads nothing, runs nothing, and needs no program."""

from datetime import datetime

from gpushare_plugin.observe.cluster.report import ClusterReport
from gpushare_plugin.web.colors import colors_of
from gpushare_plugin.web.held import held_by_namespace, ranked, sizes
from gpushare_plugin.web.markup import RowStyle, in_one_file, name_width, row
from gpushare_plugin.web.tiles import gpus_of, legend, tiles
from gpushare_plugin.web.use import NOT_READ
from gpushare_plugin.web.viewer import EVERYTHING


def single_file(report: ClusterReport, made: datetime) -> str:
    """Return a report as HTML; `made` is the time of the report, an aware time."""
    colors = colors_of(ranked(held_by_namespace(node, sizes(None)) for node in report.nodes), EVERYTHING)
    look = RowStyle("namespace", colors, nodes="#", gpu="/")
    found = [(node, list(tiles(node, EVERYTHING))) for node in report.nodes]
    return in_one_file(
        "single_file.html",
        made=made,
        report=report,
        gpus=sum(len(several) for _, several in found),
        legend=legend("namespace", colors, EVERYTHING),
        names=name_width(node.name for node in report.nodes),
        rows=[row(f"row-{node.name}", node.name, several, look) for node, several in found],
        nodes=[(node, gpus_of(node).items()) for node in report.nodes],
        viewer=EVERYTHING,
        reading=NOT_READ,
        holders={},
    )

"""The report of a run: Markdown for `real_gpus/reports/`, with all versions that matter."""

import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gpushare_plugin.base.version import __version__
from gpushare_plugin.observe.node.report import NodeReport
from real_gpus.findings import StepReport, Verdict


def written(node: NodeReport, steps: Sequence[StepReport], *, may_change: bool) -> str:
    """Return the report."""
    return "\n".join(_lines(node, steps, may_change=may_change)) + "\n"


def _lines(node: NodeReport, steps: Sequence[StepReport], *, may_change: bool) -> Iterator[str]:
    products = Counter(gpu.product for gpu in node.gpus)
    yield f"# {', '.join(f'{count} {name}' for name, count in products.items())}, driver {node.driver_version}"
    yield ""
    yield "Written by `make gpu`. What is measured is one run on one machine."
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| gpushare | {__version__} |"
    yield f"| date | {datetime.now(UTC).date()} |"
    yield f"| driver | {node.driver_version}, {_module()} |"
    yield f"| CUDA of the driver | {node.cuda_version} |"
    yield f"| kernel | {platform.release().partition('-')[0]} {platform.machine()} |"
    yield f"| cgroups | {'version 2' if Path('/sys/fs/cgroup/cgroup.controllers').exists() else 'version 1'} |"
    yield f"| Python | {platform.python_version()} |"
    yield f"| compute mode | {'set to EXCLUSIVE_PROCESS under MPS' if may_change else 'left as it was'} |"
    counts = Counter(finding.verdict for step in steps for finding in step.findings)
    yield f"| statements | {', '.join(f'{counts[verdict]} {verdict}' for verdict in Verdict)} |"
    for step in steps:
        yield ""
        yield f"## {step.title}"
        yield ""
        yield f"{step.seconds:.0f} s."
        yield ""
        yield "| statement | expected | found | |"
        yield "|---|---|---|---|"
        for finding in step.findings:
            yield f"| {' | '.join(map(_cell, finding))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _module() -> str:
    try:
        said = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "kind of kernel module unknown"
    return "open kernel module" if "Open Kernel Module" in said else "closed kernel module"

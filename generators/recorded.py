"""Recording rules inside the chart; `python -m generators.recorded` writes them.

`files/cost.yaml` says what the GPUs that containers hold cost, by the price of each model; the chart adds the prices.
`files/dcgm.yaml` gives what gpushare knows the names and labels of NVIDIA's dcgm-exporter.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from generators.dashboard.promql import CARD, GPU, everywhere, held_gpus, products
from generators.pages import DOCUMENTS

_FILES = DOCUMENTS.parent / "charts/gpushare/files"
COST_FILE, DCGM_FILE = _FILES / "cost.yaml", _FILES / "dcgm.yaml"

COST = "gpushare:cost:per_hour"
"""What each namespace's part of each GPU costs by the hour."""
PRICE = "gpushare:price:per_hour"
"""What a GPU costs by the hour, by the label `product`; a MIG instance costs as much of the price as it has memory."""


_MIB = 1 << 20
_LABELS = {
    "gpu": ("index", "$1"),
    "device": ("index", "nvidia$1"),
    "UUID": ("uuid", "$1"),
    "modelName": ("product", "$1"),
    "Hostname": ("node", "$1"),
    "hostname": ("node", "$1"),
}
"""The labels of dcgm-exporter, with the label and the text that each is made of.

Names from `internal/pkg/rendermetrics/render_metrics.go` of NVIDIA/dcgm-exporter 4; older versions have `Hostname`. For
containers, `internal/pkg/transformation/const.go` has `namespace`, `pod` and `container`; Prometheus calls them
`exported_namespace` and so on where it scrapes with `honorLabels: false`, the default of dcgm-exporter's chart.
"""
_HOLDER = ("namespace", "pod", "container")


def costs() -> Iterator[tuple[str, str]]:
    """Yield what is recorded of costs, by name, as PromQL."""
    model = f'label_replace({products()}, "product", "$1", "product", "(.*?)( MIG .*)?")'
    of_model = f"* on ({GPU}) group_left (product) {model}"
    held = f"sum by ({GPU}, namespace, product) ({held_gpus(everywhere)} {of_model})"
    yield COST, f"{held} * on (product) group_left () max by (product) ({PRICE})"


def dcgm() -> Iterator[tuple[str, str]]:
    """Yield what is recorded under dcgm-exporter's names, which has a series of a GPU, and more of its containers.

    dcgm-exporter has such series of containers with the options for virtual GPUs and metrics by process
    (`createPerProcessMetrics` in `internal/pkg/transformation/kubernetes.go`). MIG instances are left out.
    """
    total, used, utilization = (
        everywhere(f"gpushare_gpu_{each}", CARD) for each in ("memory_bytes", "memory_used_bytes", "utilization_ratio")
    )
    used_by, utilization_by = (
        everywhere(f"gpushare_container_{each}", CARD) for each in ("memory_used_bytes", "utilization_ratio")
    )
    yield "DCGM_FI_DEV_FB_USED", f"({_renamed(used)} or {_renamed(used_by, *_HOLDER)}) / {_MIB}"
    yield "DCGM_FI_DEV_FB_FREE", f"{_renamed(f'({total} - {used})')} / {_MIB}"
    yield "DCGM_FI_DEV_GPU_UTIL", f"({_renamed(utilization)} or {_renamed(utilization_by, *_HOLDER)}) * 100"


def _renamed(promql: str, *holder: str) -> str:
    renamed = f"{promql} * on ({GPU}) group_left (product) {products()}"
    exported = {f"exported_{label}": (label, "$1") for label in holder}
    for label, (source, text) in (_LABELS | exported).items():
        renamed = f'label_replace({renamed}, "{label}", "{text}", "{source}", "(.*)")'
    return f"sum by ({', '.join(('cluster', 'job', 'instance', *_LABELS, *holder, *exported))}) ({renamed})"


def price_rules(prices: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the rules that say what a GPU of a model costs by the hour, as the chart makes them of its values."""
    return [
        {"record": PRICE, "expr": f"vector({price:g})", "labels": {"product": model}} for model, price in prices.items()
    ]


def files() -> dict[Path, str]:
    """Return the files of the chart with what is in them."""
    return {COST_FILE: _rules("gpushare-cost", costs()), DCGM_FILE: _rules("gpushare-dcgm", dcgm())}


def _rules(group: str, recorded: Iterator[tuple[str, str]]) -> str:
    rules = [{"record": name, "expr": promql} for name, promql in recorded]
    return yaml.safe_dump({"groups": [{"name": group, "rules": rules}]}, sort_keys=False, width=120)


if __name__ == "__main__":
    for file, text in files().items():
        file.write_text(text)

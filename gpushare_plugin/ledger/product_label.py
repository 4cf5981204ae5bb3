"""The node label with the model of the GPUs, as feature discovery and the node's daemon write it."""

import re

PRODUCT = "nvidia.com/gpu.product"
"""The label, by which node selectors and node affinity choose models."""

SHARED = "-SHARED"
"""The end of the value where the node offers replicas under the name of whole GPUs."""

_LONGEST = 63 - len(SHARED)


def label_value(text: str) -> str:
    """Return text as the value of a label: at most 63 characters, with words joined by dashes."""
    allowed = re.sub(r"[^-A-Za-z0-9_. ]", "", text)
    return "-".join(allowed.split())[:_LONGEST].strip("-_.")


def product_value(model: str) -> str:
    """Return the value of the label for a model."""
    return label_value(model.replace("+", "."))

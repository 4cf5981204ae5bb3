"""Questions that a card or a driver does not answer, told from a card that does not answer.

Facts: the error codes of nvml.h (`nvmlReturn_t`). GB10 and other GPUs that share the memory of the host answer
NOT_SUPPORTED when asked for their memory (github.com/NVIDIA/k8s-device-plugin, pull request 1374). Other cards do not
know MIG mode, compute modes, events or utilization, and a vGPU does not know much of the hardware. Such an answer
costs one fact. Any other error is about the card, not about the question: the card may be lost, or hang.
"""

from collections.abc import Callable
from typing import TypeVar

import pynvml

T = TypeVar("T")

UNANSWERED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_ArgumentVersionMismatch,
    pynvml.NVMLError_Deprecated,
    pynvml.NVMLError_NoData,
    pynvml.NVMLError_NoPermission,
)
"""The errors of a question without an answer: by this card, by this driver, or for this process."""


def answered(ask: Callable[[], T], otherwise: T) -> T:
    """Return the answer to a question, or `otherwise` without an answer; raises NVMLError for the trouble of a card."""
    try:
        return ask()
    except UNANSWERED:
        return otherwise

"""Names of extended resources: which ones the API server and the kubelet accept, and which are misspelt."""

import re
from collections.abc import Collection

from gpushare_plugin.config.spelling import nearest, wrong
from gpushare_plugin.foundation.text import some_of

MEMORY = "aliyun.com/gpu-mem"
"""The resource that pods of the Aliyun scheduler request; the default."""

CORES = "aliyun.com/gpu-core.percentage"
"""The resource by which pods request compute, in percent of a GPU."""

MEMORY_IN_MIB = {
    "nvidia.com/gpumem": "HAMi",
    "volcano.sh/vgpu-memory": "Volcano",
    "volcano.sh/gpu-memory": "Volcano",
}
"""Resources that pods request in MiB, as the scheduler they were written for has it."""

WHOLE_GPU = "nvidia.com/gpu"

CONTAINER_DRIVER_ROOT = "/driver-root"
"""Where NVIDIA's plugin, and so this one, has the host's driver root mounted unless told otherwise."""

MIG_EXAMPLES = tuple(
    f"nvidia.com/mig-{profile}"
    for profile in ("1g.5gb", "1g.6gb", "1g.10gb", "2g.10gb", "2g.20gb", "3g.20gb", "3g.40gb", "4g.20gb", "7g.40gb")
)
"""MIG resources to suggest from; there are others."""

ALLOWED = "an extended-resource name <domain>/<name>, such as aliyun.com/gpu-mem"

ALLOWED_WITHOUT_DOMAIN = "<domain>/<name>, such as nvidia.com/gpu.shared; without a domain it is nvidia.com's"

# apimachinery: IsDNS1123Subdomain and IsQualifiedName; 9 of the 253 characters go to the quota prefix "requests.".
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DOMAIN_LENGTH = 253 - len("requests.")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NAME_LENGTH = 63
_FORBIDDEN = re.compile(r"[^-A-Za-z0-9_.]+")

PATTERN = f"{_DOMAIN.pattern}/{_NAME.pattern}"
PATTERN_WITHOUT_DOMAIN = f"({_DOMAIN.pattern}/)?{_NAME.pattern}"
"""What names look like; not all that do can be registered."""

_MIG = re.compile(r"nvidia\.com/mig-(\d+c\.)?\d+g\.\d+gb([-.][-a-z0-9.]*[a-z0-9])?")

# "aliyun.com/gpu-mem2" or "…-mem.large" is a second resource, "…-memory" a mistake.
_DELIBERATE = re.compile(re.escape(MEMORY) + r"[-._0-9].*")
_CLEARLY_MISSPELT = 0.9


_NAMES_TO_CHOOSE_FROM = 20
"""Declared names that a message suggests from; comparing each wrong name with hundreds would take seconds."""


def extended_resource(name: str) -> str:
    """Return `name` if a kubelet would register it as an extended resource.

    Follows `IsExtendedResourceName` of Kubernetes 1.36. Raises ValueError with the reason and the nearest right name.
    """
    fault = _fault(name)
    if fault is None:
        return name
    raise ValueError(f"{wrong(name, ALLOWED, _meant(name))} ({fault})")


def with_nvidia_domain(name: str) -> str:
    """Return the full name of a resource that may be given without its domain, as in `mig-1g.5gb` or `gpu`."""
    full = with_domain(name)
    fault = _fault(full)
    if fault is None:
        return full
    domain, slash, rest = name.rpartition("/")
    meant = f"{domain.lower()}{slash}{_FORBIDDEN.sub('-', rest).strip('-_.')}"
    right = _fault(with_domain(meant)) is None
    raise ValueError(f"{wrong(name, ALLOWED_WITHOUT_DOMAIN, meant if right else None)} ({fault})")


def with_domain(name: str) -> str:
    """Return `name` with the domain that it has where none is given."""
    return name if "/" in name or not name else f"nvidia.com/{name}"


def shareable(name: str, declared: Collection[str]) -> str:
    """Return `name` if whole devices can be advertised as it, for then replicas of them can be.

    `declared` are the names the config gives to devices. Raises ValueError with the nearest right name.
    """
    if name == WHOLE_GPU or name in declared or is_mig(name):
        return name
    known, most = [WHOLE_GPU, *sorted(declared)], 1 + _NAMES_TO_CHOOSE_FROM
    allowed = f"{some_of(known, most)}, nvidia.com/mig-<g>g.<m>gb, or a name from resources"
    raise ValueError(wrong(name, allowed, nearest(name, (*known[:most], *MIG_EXAMPLES))))


def is_mig(name: str) -> bool:
    """Return whether `name` is a resource name of MIG instances of a profile."""
    return _MIG.fullmatch(name) is not None


def memory_resource(name: str) -> str:
    """Return `name` if it can stand for GPU memory.

    Raises ValueError for names that no kubelet accepts, for clear misspellings of `MEMORY`, and for `CORES`.
    """
    extended_resource(name)
    if name == CORES:
        raise ValueError(
            f'found "{name}", which stands for compute; name the units of memory {MEMORY}, and set compute: requested '
            "to offer compute as well"
        )
    if name == MEMORY or _DELIBERATE.fullmatch(name) or nearest(name, (MEMORY,), _CLEARLY_MISSPELT) is None:
        return name
    raise ValueError(wrong(name, f"{MEMORY}, or a clearly different name", MEMORY))


def _meant(name: str) -> str | None:
    domain, slash, rest = name.partition("/")
    if not slash:
        full = {known.partition("/")[2]: known for known in (MEMORY, WHOLE_GPU)}
        short = nearest(name, full)
        return full[short] if short else None
    lowered = f"{domain.lower()}/{rest}"
    return lowered if _fault(lowered) is None else nearest(name, (MEMORY, WHOLE_GPU))


def _fault(name: str) -> str | None:
    domain, slash, rest = name.partition("/")
    rules = (
        (bool(slash), "it has no domain"),
        (not name.startswith("requests."), '"requests." is reserved for quotas'),
        ("kubernetes.io/" not in name, "kubernetes.io is reserved for Kubernetes"),
        (_DOMAIN.fullmatch(domain), "the domain consists of lower-case letters, digits, dots and inner dashes"),
        (len(domain) <= _DOMAIN_LENGTH, f"the domain has at most {_DOMAIN_LENGTH} characters"),
        (
            _NAME.fullmatch(rest),
            "the name after the domain consists of letters, digits and inner dashes, dots and underscores",
        ),
        (len(rest) <= _NAME_LENGTH, f"the name after the domain has at most {_NAME_LENGTH} characters"),
    )
    return next((fault for holds, fault in rules if not holds), None)

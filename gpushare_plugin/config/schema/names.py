"""Names of extended resources and of DRA drivers: which names Kubernetes accepts, and which names are misspelt."""

import re
from collections.abc import Collection

from gpushare_plugin.base.text import some_of
from gpushare_plugin.config.schema.spelling import nearest, wrong

MEMORY = "aliyun.com/gpu-mem"
"""The resource requested by pods of the Aliyun scheduler; the default."""

CORES = "aliyun.com/gpu-core.percentage"
"""The resource for requests of compute, in percent of a GPU."""

MEMORY_IN_MIB = {
    "nvidia.com/gpumem": "HAMi",
    "volcano.sh/vgpu-memory": "Volcano",
    "volcano.sh/gpu-memory": "Volcano",
}
"""Resources requested in MiB, each with the scheduler that introduced the name."""

WHOLE_GPU = "nvidia.com/gpu"
"""The resource of whole GPUs."""

CONTAINER_DRIVER_ROOT = "/driver-root"
"""The default mount point of the host's driver root in the container, for NVIDIA's plugin and for gpushare."""

MIG_EXAMPLES = tuple(
    f"nvidia.com/mig-{profile}"
    for profile in ("1g.5gb", "1g.6gb", "1g.10gb", "2g.10gb", "2g.20gb", "3g.20gb", "3g.40gb", "4g.20gb", "7g.40gb")
)
"""Some MIG resources, for suggestions."""

ALLOWED = "an extended-resource name <domain>/<name>, such as aliyun.com/gpu-mem"
"""The allowed names, in words."""

ALLOWED_WITHOUT_DOMAIN = "<domain>/<name>, such as nvidia.com/gpu.shared; without a domain it is nvidia.com's"
"""The allowed names of a setting with the default domain nvidia.com, in words."""

# apimachinery: IsDNS1123Subdomain and IsQualifiedName; the quota prefix "requests." takes up 9 of the 253 characters.
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DOMAIN_LENGTH = 253 - len("requests.")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NAME_LENGTH = 63
_FORBIDDEN_IN_DOMAIN = re.compile(r"[^-a-z0-9.]+")
_FORBIDDEN = re.compile(r"[^-A-Za-z0-9_.]+")

PATTERN = f"{_DOMAIN.pattern}/{_NAME.pattern}"
"""A pattern that matches every valid name, and also some invalid names."""
PATTERN_WITHOUT_DOMAIN = f"({_DOMAIN.pattern}/)?{_NAME.pattern}"
"""Like `PATTERN`, with an optional domain."""

DRA_DRIVER = "gpu.gpushare.io"
"""The default name of the DRA driver."""

NVIDIA_DRA_DRIVER = "gpu.nvidia.com"
"""The name of NVIDIA's DRA driver for GPUs (kubernetes-sigs/dra-driver-nvidia-gpu)."""

DRA_DRIVER_ALLOWED = f"a name of up to 63 lower-case letters, digits, dashes and dots, such as {DRA_DRIVER}"
"""The allowed names of a DRA driver, in words."""

DRA_DRIVER_PATTERN = _DOMAIN.pattern
"""A pattern that matches every valid name of a DRA driver, and also names that are too long."""

_DRA_DRIVER_LENGTH = 63

_MIG = re.compile(r"nvidia\.com/mig-(\d+c\.)?\d+g\.\d+gb([-.][-a-z0-9.]*[a-z0-9])?")

# "aliyun.com/gpu-mem2" or "…-mem.large" is a second resource, "…-memory" a mistake.
_DELIBERATE = re.compile(re.escape(MEMORY) + r"[-._0-9].*")
_CLEARLY_MISSPELT = 0.9


_NAMES_TO_CHOOSE_FROM = 20
"""Declared names considered for suggestions; comparing each wrong name with hundreds would take seconds."""


def extended_resource(name: str) -> str:
    """Return `name` if a kubelet would accept `name` as an extended resource.

    Follows `IsExtendedResourceName` of Kubernetes 1.36. Raises ValueError with the reason and the nearest right name.
    """
    fault = _fault(name)
    if fault is None:
        return name
    raise ValueError(f"{wrong(name, ALLOWED, _meant(name))} ({fault})")


def dra_driver(name: str) -> str:
    """Return `name` if the API server would accept `name` as the name of a DRA driver.

    Follows `ValidateDriverName` of Kubernetes 1.36 (pkg/apis/resource/validation). Raises ValueError with the nearest
    right name, and for the name of NVIDIA's DRA driver, whose sockets and ResourceSlices are not ours.
    """
    if name == NVIDIA_DRA_DRIVER:
        raise ValueError(
            f'found "{name}", the name of NVIDIA\'s DRA driver: two DRA drivers of one name take sockets and '
            f"ResourceSlices from each other; take another name, such as {DRA_DRIVER}"
        )
    if _is_dra_driver(name):
        return name
    meant = _FORBIDDEN_IN_DOMAIN.sub("-", name.lower()).strip("-.")[:_DRA_DRIVER_LENGTH].rstrip("-.")
    raise ValueError(wrong(name, DRA_DRIVER_ALLOWED, meant if _is_dra_driver(meant) else None))


def _is_dra_driver(name: str) -> bool:
    return len(name) <= _DRA_DRIVER_LENGTH and bool(_DOMAIN.fullmatch(name))


def with_nvidia_domain(name: str) -> str:
    """Return the full name of a resource given with or without the domain, for example as `mig-1g.5gb` or `gpu`.

    Raises ValueError with the reason and the nearest right name.
    """
    full = with_domain(name)
    fault = _fault(full)
    if fault is None:
        return full
    domain, slash, rest = name.rpartition("/")
    meant = f"{domain.lower()}{slash}{_FORBIDDEN.sub('-', rest).strip('-_.')}"
    right = _fault(with_domain(meant)) is None
    raise ValueError(f"{wrong(name, ALLOWED_WITHOUT_DOMAIN, meant if right else None)} ({fault})")


def with_domain(name: str) -> str:
    """Return `name`, with the domain nvidia.com if `name` has no domain."""
    return name if "/" in name or not name else f"nvidia.com/{name}"


def shareable(name: str, declared: Collection[str]) -> str:
    """Return `name` if whole devices can have this resource name: only such devices can have replicas.

    `declared` are the names given to devices by the config. Raises ValueError with the nearest right name.
    """
    if name == WHOLE_GPU or name in declared or is_mig(name):
        return name
    known, most = [WHOLE_GPU, *sorted(declared)], 1 + _NAMES_TO_CHOOSE_FROM
    allowed = f"{some_of(known, most)}, nvidia.com/mig-<g>g.<m>gb, or a name from resources"
    raise ValueError(wrong(name, allowed, nearest(name, (*known[:most], *MIG_EXAMPLES))))


def is_mig(name: str) -> bool:
    """Return whether `name` is the resource name of the MIG instances of a profile."""
    return _MIG.fullmatch(name) is not None


def memory_resource(name: str) -> str:
    """Return `name` if a resource of GPU memory can have this name.

    Raises ValueError for names rejected by the kubelet, for clear misspellings of `MEMORY`, and for `CORES`.
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

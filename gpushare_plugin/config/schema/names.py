"""Names of extended resources: which the API server and the kubelet accept, and which are misspelt."""

import re
from collections.abc import Collection

from gpushare_plugin.config.spelling import nearest, wrong
from gpushare_plugin.foundation.text import some_of

MEMORY = "aliyun.com/gpu-mem"
"""The resource pods of the Aliyun scheduler ask for; what is served where nothing else is said."""

WHOLE_GPU = "nvidia.com/gpu"

MIG_EXAMPLES = tuple(
    f"nvidia.com/mig-{profile}"
    for profile in ("1g.5gb", "1g.6gb", "1g.10gb", "2g.10gb", "2g.20gb", "3g.20gb", "3g.40gb", "4g.20gb", "7g.40gb")
)
"""MIG resources to suggest from; there are others."""

ALLOWED = "an extended-resource name <domain>/<name>, such as aliyun.com/gpu-mem"

# apimachinery: IsDNS1123Subdomain and IsQualifiedName; 9 of the 253 characters go to the quota prefix "requests.".
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_DOMAIN_LENGTH = 253 - len("requests.")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NAME_LENGTH = 63

_MIG = re.compile(r"nvidia\.com/mig-(\d+c\.)?\d+g\.\d+gb([-.][-a-z0-9.]*[a-z0-9])?")

# "aliyun.com/gpu-mem2" or "…-mem.large" is a second resource, "…-memory" a slip.
_DELIBERATE = re.compile(re.escape(MEMORY) + r"[-._0-9].*")
_CLEAR_SLIP = 0.9


_NAMES_TO_CHOOSE_FROM = 20
"""Names of the settings that a message suggests from; comparing each wrong name with hundreds would take seconds."""


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
    return extended_resource(name if "/" in name or not name else f"nvidia.com/{name}")


def shareable(name: str, declared: Collection[str]) -> str:
    """Return `name` if whole devices can be advertised as it, for then replicas of them can be.

    `declared` are the names the settings give to devices. Raises ValueError with the nearest right name.
    """
    if name == WHOLE_GPU or name in declared or is_mig(name):
        return name
    known, most = [WHOLE_GPU, *sorted(declared)], 1 + _NAMES_TO_CHOOSE_FROM
    allowed = f"{some_of(known, most)}, nvidia.com/mig-<g>g.<m>gb, or a name that resources gives"
    raise ValueError(wrong(name, allowed, nearest(name, (*known[:most], *MIG_EXAMPLES))))


def mig(profile: str) -> str:
    """Return what NVIDIA's plugin advertises MIG instances of a profile as: `+` is not for names, so `1g.5gb.me`."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def is_mig(name: str) -> bool:
    """Tell whether `name` is one that MIG instances of a profile are advertised under."""
    return _MIG.fullmatch(name) is not None


def memory_resource(name: str) -> str:
    """Return `name` if it can stand for GPU memory.

    Raises ValueError for names no kubelet takes and for clear misspellings of `MEMORY`.
    """
    extended_resource(name)
    if name == MEMORY or _DELIBERATE.fullmatch(name) or nearest(name, (MEMORY,), _CLEAR_SLIP) is None:
        return name
    raise ValueError(wrong(name, f"{MEMORY}, or a name that cannot be taken for it", MEMORY))


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
        (not name.startswith("requests."), '"requests." is kept for quotas'),
        ("kubernetes.io/" not in name, "kubernetes.io is kept for Kubernetes itself"),
        (_DOMAIN.fullmatch(domain), "the domain takes lower-case letters, digits, dots and inner dashes"),
        (len(domain) <= _DOMAIN_LENGTH, f"the domain can have {_DOMAIN_LENGTH} characters"),
        (_NAME.fullmatch(rest), "after the domain, letters, digits and inner dashes, dots and underscores can stand"),
        (len(rest) <= _NAME_LENGTH, f"after the domain, {_NAME_LENGTH} characters can stand"),
    )
    return next((fault for holds, fault in rules if not holds), None)

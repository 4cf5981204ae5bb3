"""What each panel of the dashboard shows of the simulated cluster, computed by hand."""

from tests.monitoring.simulated_cluster import (
    A100,
    BOUNDS,
    EVERY,
    GIB,
    L4,
    MIG_LARGE,
    MIG_SMALL,
    REPLICAS,
    SCRAPES,
)
from tests.unit.sharing.settings import GPU_MEM

Figures = dict[str, float]
"""What a panel shows, by the names of its series; in a table, by the labels of the row and the column."""


def ninety_nine(lower: float, upper: float) -> float:
    """Return what Prometheus says of calls that are all in the bucket between these bounds."""
    return lower + 0.99 * (upper - lower)


def rows(columns: tuple[str, ...], *rows: tuple[float | str | None, ...]) -> Figures:
    """Return the figures of a table: each row begins with its labels; None is an empty cell."""
    return {
        f"{row[0]} | {column}": float(value)
        for row in rows
        for column, value in zip(columns, row[1:], strict=True)
        if value is not None
    }


ONCE = 1 / EVERY
"""Something that happens once between two scrapes, by the second."""
GPU_0, GPU_1, WHOLE, PART = "shared GPU 0", "shared GPU 1", "mig GPU 0", "mig GPU 0:0"
MPS_0, MPS_1, TURNS_0, TURNS_1 = "mps GPU 0", "mps GPU 1", "turns GPU 0", "turns GPU 1"
CLAIMED_0, CLAIMED_1 = "claims GPU 0", "claims GPU 1"
IDLE = (GPU_1, MPS_1, TURNS_1)
"""GPUs that nobody holds, of which it is known."""
TRAINER, SLICER = "team/trainer main GPU 0", "team/slicer main GPU 0:0"
SLEEPER, NOTEBOOK = "batch/sleeper main GPU 0", "team/notebook main GPU 0"
LIMITED, UNLIMITED = "team/limited main GPU 0", "batch/unlimited main GPU 0"
MIG_GIB = 4864 / 1024
"""Memory of a MIG instance, in GiB; the GPU has 40."""
HELD = {"batch": 30 / 40 + 1 / 2, "team": 16 / 40 + MIG_GIB / 40 + 2 / 4 + 10 / 40}
"""GPUs: half of one is the part of the second of two claims, which has no limit."""
HOURLY = {"batch": 4 * HELD["batch"], "team": 4 * (16 / 40 + MIG_GIB / 40 + 10 / 40) + 1 * 2 / 4}
"""A GPU of the first model costs 4, and one of the second 1."""
LIMITS: Figures = {"batch": 30 * GIB, "team": (16 + MIG_GIB + 10) * GIB}
USED: Figures = {"batch": (10 + 1) * GIB, "team": (20 + 4 + 6 + 2) * GIB}
COST = {name: hourly * SCRAPES * EVERY / 3600 for name, hourly in HOURLY.items()}
"""Of the five minutes of which there are samples."""
IN_USE = {GPU_MEM: (16 + 30) / 160, MIG_LARGE: 1.0, MIG_SMALL: 0.0, REPLICAS: 2 / 8}

EXPECTED: dict[tuple[str, str], Figures] = {
    ("Cluster", "GPUs"): {"": 10},
    ("Cluster", "GPUs that cannot be allocated"): {"": 3},
    ("Cluster", "GPUs that do not respond"): {"": 1},
    ("Cluster", "Containers over their limit"): {"": 1},
    ("Cluster", "Memory of GPUs in use"): {"": (30 + 20 + 10 + 6) / (80 + 40 + 80 + 48)},
    ("Cluster", "Units held by pods"): IN_USE,
    ("Cluster", "Alerts that fire"): {"GpuFaulty critical shared 1 | ": 1},
    ("Namespaces", "Held and used by namespace"): rows(
        (
            "GPUs held",
            "GPUs' worth of computing",
            "Memory held",
            "Memory used",
            "Memory used of held",
            "Cost of an hour",
            "Cost in the time shown",
        ),
        ("batch", HELD["batch"], 0.25, LIMITS["batch"], USED["batch"], 10 / 30, HOURLY["batch"], COST["batch"]),
        (
            "team",
            HELD["team"],
            0.5 + 0.25 + 0.25,
            LIMITS["team"],
            USED["team"],
            (20 + 4 + 2) * GIB / LIMITS["team"],
            HOURLY["team"],
            COST["team"],
        ),
    ),
    ("Namespaces", "GPUs held"): HELD,
    ("Namespaces", "Memory held"): LIMITS,
    ("Namespaces", "Memory used"): USED,
    ("Namespaces", "Cost of an hour"): HOURLY,
    ("What is free", "Free by model"): rows(
        (
            "GPUs",
            "Units free",
            "Largest free piece, units",
            "Memory free",
            "Largest free piece, memory",
            "In pieces too small",
        ),
        (f"{A100} {GPU_MEM}", 4, 24 + 10, 24, (24 + 10) * GIB, 24 * GIB, 10 * GIB),
        (f"{A100} MIG 3g.20gb {MIG_LARGE}", 1, 0, 0, None, None, None),
        (f"{A100} MIG 1g.5gb {MIG_SMALL}", 1, 1, 1, None, None, None),
        (f"{L4} {REPLICAS}", 2, 2, 2, None, None, None),
    ),
    ("What is free", "Largest free piece"): {f"{A100} {GPU_MEM}": 24 * GIB},
    ("What is free", "Free in pieces that are too small"): {f"{A100} {GPU_MEM}": 10 / (24 + 10)},
    ("MIG, MPS, faulty and idle GPUs", "GPUs divided by MIG"): {"": 1},
    ("MIG, MPS, faulty and idle GPUs", "MIG instances"): {"": 2},
    ("MIG, MPS, faulty and idle GPUs", "MIG instances held"): {"": 1},
    ("MIG, MPS, faulty and idle GPUs", "GPUs under MPS"): {"": 2},
    ("MIG, MPS, faulty and idle GPUs", "GPUs that MPS does not serve"): {"": 1},
    ("MIG, MPS, faulty and idle GPUs", "Programs under MPS"): {"": 2},
    ("MIG, MPS, faulty and idle GPUs", "Faulty GPUs"): {"": 1},
    ("MIG, MPS, faulty and idle GPUs", "Cordoned GPUs"): {"": 1},
    ("MIG, MPS, faulty and idle GPUs", "GPUs that nobody holds"): {"": len(IDLE)},
    ("MIG, MPS, faulty and idle GPUs", "Held and idle GPUs"): {"": 1},
    ("MIG, MPS, faulty and idle GPUs", "GPUs that need a look"): {
        f"shared 1 {A100} fault | ": 1,
        f"mps 1 {A100} mps | ": 1,
        f"turns 1 {L4} cordon | ": 1,
        f"mps 0 {A100} idle | ": 0,
    },
    ("Nodes", "All nodes"): rows(
        (
            "GPUs",
            "GPUs that cannot be allocated",
            "GPUs that do not respond",
            "Memory in use",
            "Newest config is in effect",
            "Registered with the kubelet",
        ),
        ("shared", 2, 1, 0, 30 / 80, 1, 1),
        ("mig", 1, 0, 0, 20 / 40, 0, None),
        ("mps", 2, 1, 0, 10 / 80, None, None),
        ("turns", 2, 1, 0, 6 / 48, None, None),
        ("unobserved", 1, 0, 1, None, None, None),
        ("claims", 2, 0, 0, None, None, None),
    ),
    ("Nodes", "Units held by pods"): {
        f"shared {GPU_MEM}": 16 / 80,
        f"mps {GPU_MEM}": 30 / 80,
        f"mig {MIG_LARGE}": 1,
        f"mig {MIG_SMALL}": 0,
        f"turns {REPLICAS}": 2 / 8,
    },
    ("Nodes", "Memory in use"): {"shared": 30 / 80, "mig": 20 / 40, "mps": 10 / 80, "turns": 6 / 48},
    ("Nodes", "Newest config is in effect"): {"shared": 1, "mig": 0},
    ("Nodes", "Registered with the kubelet"): {f"shared {GPU_MEM}": 1},
    ("Nodes", "Duration of the kubelet's calls (99 %)"): {"shared Allocate": ninety_nine(*BOUNDS)},
    ("Nodes", "Calls of the kubelet refused"): {f"shared {GPU_MEM} Allocate": ONCE},
    ("Nodes", "Errors of the API server"): {"shared server": 2 * ONCE, "shared conflict": 0},
    ("GPUs", "All GPUs"): {
        **rows(
            ("Can be allocated", "Memory", "Memory in use", "Units held by pods", "Utilization", "Processes"),
            ("shared 0", 1, 40 * GIB, 30 / 40, 16 / 40, 0.75, 2),
            ("shared 1", 0, 40 * GIB, 0, 0, 0, 0),
            ("mig 0", 1, 40 * GIB, 20 / 40, None, None, None),
            ("mig 0:0", 1, MIG_GIB * GIB, 4 / MIG_GIB, 1, None, None),
            ("mig 0:1", 1, MIG_GIB * GIB, None, 0, None, None),
            ("mps 0", 1, 40 * GIB, 10 / 40, 30 / 40, 0, 2),
            ("mps 1", 0, 40 * GIB, 0, 0, 0, 0),
            ("turns 0", 1, 24 * GIB, 6 / 24, 2 / 4, 0.25, 1),
            ("turns 1", 0, 24 * GIB, 0, 0, 0, 0),
            ("unobserved 0", 1, 40 * GIB, None, None, None, None),
            ("claims 0", 1, 40 * GIB, None, None, None, None),
            ("claims 1", 1, 40 * GIB, None, None, None, None),
        ),
        **dict.fromkeys(
            (
                *(f"shared {index} {A100} memory | " for index in (0, 1)),
                *(f"mps {index} {A100} mps | " for index in (0, 1)),
                *(f"turns {index} {L4} time-slicing | " for index in (0, 1)),
                *(f"claims {index} {A100} none | " for index in (0, 1)),
                f"unobserved 0 {A100} time-slicing | ",
                f"mig 0 {A100} none | ",
                f"mig 0:0 {A100} MIG 3g.20gb exclusive | ",
                f"mig 0:1 {A100} MIG 1g.5gb exclusive | ",
            ),
            1,
        ),
    },
    ("GPUs", "GPUs by memory in use"): {"0": 3, "0.2": 3, "0.4": 3 + 2, "0.6": 5 + 1, "0.8": 6 + 1, "1": 7},
    ("GPUs", "GPUs by utilization"): {"0": 4, "0.2": 4, "0.4": 4 + 1, "0.6": 5, "0.8": 5 + 1, "1": 6},
    ("GPUs", "Memory in use"): {
        GPU_0: 30 * GIB,
        WHOLE: 20 * GIB,
        PART: 4 * GIB,
        MPS_0: 10 * GIB,
        TURNS_0: 6 * GIB,
        **dict.fromkeys(IDLE, 0),
    },
    ("GPUs", "Utilization"): {GPU_0: 0.75, MPS_0: 0, TURNS_0: 0.25, **dict.fromkeys(IDLE, 0)},
    ("GPUs", "Units held by pods"): {
        f"{GPU_0} {GPU_MEM}": 16,
        f"{GPU_1} {GPU_MEM}": 0,
        f"{MPS_0} {GPU_MEM}": 30,
        f"{MPS_1} {GPU_MEM}": 0,
        f"{TURNS_0} {REPLICAS}": 2,
        f"{TURNS_1} {REPLICAS}": 0,
        f"{PART} {MIG_LARGE}": 1,
        f"mig GPU 0:1 {MIG_SMALL}": 0,
    },
    ("GPUs", "Why it cannot be allocated"): {f"{GPU_1} fault": 1, f"{MPS_1} mps": 1, f"{TURNS_1} cordon": 1},
    ("GPUs", "Errors by XID"): {f"{GPU_1} XID 79": 2},
    ("GPUs", "Processes"): {GPU_0: 2, MPS_0: 2, TURNS_0: 1, **dict.fromkeys(IDLE, 0)},
    ("GPUs", "Processes out of place"): {
        GPU_0: 1,
        **dict.fromkeys((WHOLE, PART, MPS_0, TURNS_0, *IDLE, CLAIMED_0, CLAIMED_1), 0),
    },
    ("GPUs", "Containers by whether their limit is in effect"): {f"{GPU_0} not_in_effect": 1},
    ("GPUs", "Waits for pods to end"): {
        GPU_0: 1,
        **dict.fromkeys((WHOLE, PART, "mig GPU 0:1", MPS_0, TURNS_0, *IDLE), 0),
        **dict.fromkeys(("unobserved GPU 0", CLAIMED_0, CLAIMED_1), 0),
    },
    ("Pods", "All containers"): rows(
        ("Units", "Memory held", "Memory used", "Memory used of held", "Utilization"),
        (f"team trainer main shared 0 {GPU_MEM}", 16, 16 * GIB, 20 * GIB, 20 / 16, 0.5),
        (f"team slicer main mig 0:0 {MIG_LARGE}", 1, MIG_GIB * GIB, 4 * GIB, 4 / MIG_GIB, None),
        (f"team notebook main turns 0 {REPLICAS}", 2, None, 6 * GIB, None, 0.25),
        ("team limited main claims 0 claim:gpu", 1, 10 * GIB, 2 * GIB, 2 / 10, 0.25),
        (f"batch sleeper main mps 0 {GPU_MEM}", 30, 30 * GIB, 10 * GIB, 10 / 30, 0),
        ("batch unlimited main claims 0 claim:gpu", 1, None, 1 * GIB, None, 0.25),
    ),
    ("Pods", "Memory in use"): {
        TRAINER: 20 * GIB,
        SLICER: 4 * GIB,
        NOTEBOOK: 6 * GIB,
        LIMITED: 2 * GIB,
        SLEEPER: 10 * GIB,
        UNLIMITED: 1 * GIB,
    },
    ("Pods", "Memory in use, of the limit"): {TRAINER: 1.25, SLICER: 4 / MIG_GIB, LIMITED: 0.2, SLEEPER: 1 / 3},
    ("Pods", "Utilization"): {TRAINER: 0.5, NOTEBOOK: 0.25, LIMITED: 0.25, SLEEPER: 0, UNLIMITED: 0.25},
    ("Claims", "GPUs by claim"): {"claims": 2},
    ("Claims", "Shares that prepared claims have"): {CLAIMED_0: 2, CLAIMED_1: 1},
    ("Claims", "Memory held by claims"): {CLAIMED_0: 30 / 40, CLAIMED_1: 0},
    ("Claims", "Calls of the kubelet for claims"): {"claims NodePrepareResources OK": ONCE},
    ("Claims", "Duration of calls for claims (99 %)"): {"claims NodePrepareResources": ninety_nine(*BOUNDS)},
    ("Claims", "Claims refused"): {"claims no-room": ONCE},
    ("Claims", "ResourceSlices are as they should be"): {"claims": 0},
    ("Claims", "ResourceSlices written"): {"claims": 2 * ONCE},
    ("Claims", "ResourceSlices mended"): {"claims": ONCE},
    ("Scheduler extender", "Requests"): {"filter done": 3 * ONCE, "bind refused": ONCE},
    ("Scheduler extender", "Duration of requests (99 %)"): {"filter": ninety_nine(0.025, 0.05)},
    ("Scheduler extender", "Pods refused"): {
        "no_room": ONCE,
        **dict.fromkeys(("unfit", "not_leading", "bind_failed"), 0),
    },
    ("Scheduler extender", "Pods with a promise that are not bound"): {"": 2},
    ("Scheduler extender", "Age of what is known of the cluster"): {"": 5},
    ("Scheduler extender", "Extenders that are ready"): {"": 1},
    ("Partitioner", "Slices made"): {"10gb": 2 * ONCE},
    ("Partitioner", "Slices taken back"): {"10gb": ONCE},
    ("Partitioner", "Pods for which none can be made"): {"no_room": ONCE},
    ("Partitioner", "From a pod to its slice (99 %)"): {"": ninety_nine(0.25, 0.5)},
    ("Partitioner", "Pods that wait for slices"): {"": 3},
    ("Partitioner", "Longest wait of a pod"): {"": 42},
}
"""What each panel shows of the cluster, by its row and title."""

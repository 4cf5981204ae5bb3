"""What people are shown of GPUs that are given by claim, beside the units of other GPUs."""

from collections.abc import Iterable
from itertools import pairwise
from textwrap import dedent

import pytest

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.claim import AllocatedClaim
from gpushare_plugin.claims.cluster import ClusterClaims, HeldByClaim, OfferedDevices
from gpushare_plugin.claims.device import DeviceTaint
from gpushare_plugin.claims.status import DeviceStatus
from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect
from gpushare_plugin.core.prepared_claim import ClaimUser
from gpushare_plugin.core.snapshot import Snapshot
from gpushare_plugin.ledger.node_record import record
from gpushare_plugin.observe.cluster.by_claim import with_claims
from gpushare_plugin.observe.cluster.claim_table import claims
from gpushare_plugin.observe.cluster.columns import Style
from gpushare_plugin.observe.cluster.report import ClusterReport, ResourceUse
from gpushare_plugin.observe.cluster.tables import details, summary, wide
from tests.nodes import a_gpu, a_node
from tests.unit.claims.node import DRIVER, NODE, ClaimNode, request
from tests.unit.ledger.objects import memory_node
from tests.unit.observe.cluster.clusters import Cluster
from tests.unit.sharing.settings import memory, time_slicing

TWO = a_node(40960, 40960)
OTHER_DRIVER = "gpu.nvidia.com"


def held(claim: AllocatedClaim, *, effect: Effect | None = None, prepared: bool = True) -> Iterable[HeldByClaim]:
    """Yield what a claim has, as a node says that is done with preparing the claim."""
    for each in claim.devices:
        memory_mib = each.consumed.get("memory", 0) >> 20
        status = DeviceStatus(
            NODE, each.device, "GPU", each.share_id, memory_mib=memory_mib, isolation="mps", effect=effect
        )
        yield HeldByClaim(DRIVER, claim.id, each, (ClaimUser("p", "uid"),), status if prepared else None)


def of(node: ClaimNode, *several: Iterable[HeldByClaim]) -> ClusterClaims:
    """Return the claims of a cluster with one node."""
    made = ClusterClaims()
    made.put_slice("a", OfferedDevices(DRIVER, NODE, 1, node.devices))
    for each in map(tuple, several):
        made.put_claim(each[0].claim.uid, each)
    return made


def reported(node: ClaimNode, claims: ClusterClaims) -> ClusterReport:
    """Return what is shown of the node."""
    cluster = Cluster()
    cluster.node(NODE, record(Snapshot(node.inventory, node.plan.resources, by_claim=node.plan.by_claim)))
    return with_claims(cluster.report, claims)


def by_claim(node: ClaimNode, claims: ClusterClaims) -> ResourceUse:
    """Return what is shown of the GPUs that are given by claim."""
    (use,) = reported(node, claims).nodes[0].given_by_claim
    return use


def amounts(use: ResourceUse) -> list[tuple[int, int, int, int]]:
    """Return the index, the units, what is allocated and what is free of each GPU."""
    return [(gpu.index, gpu.units, gpu.allocated, gpu.free) for gpu in use.gpus]


def shared(*sizes: str) -> tuple[ClaimNode, list[AllocatedClaim]]:
    """Return a node of two GPUs that claims share by memory under MPS, and claims of these sizes."""
    node = ClaimNode(TWO, sharing=memory(unit="GiB", isolation="mps"))
    return node, [node.allocate(size) for size in sizes]


def test_claims_are_shown_beside_the_memory_of_their_gpus() -> None:
    """Each GPU with what claims have, and each claim with its pods, its amounts, its limit and its state."""
    node, (first, second) = shared("10Gi", "4Gi")
    report = reported(node, of(node, held(first, effect=IN_EFFECT), held(second, prepared=False)))
    shown = [*summary(report, Style()), *claims(report, Style())]
    assert "\n".join(shown) + "\n" == dedent("""\
        gpu.gpushare.io: GPUs given by claim
        NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(MiB)
        node  10.0.0.1   14336/40960            0/40960                14336/81920
        --------------------------------------------------------------------------
        Allocated/Total gpu.gpushare.io In Cluster:
        14336/81920 (17%)

        GPUs and shares by claim:
        NAME  GPU  NAMESPACE  CLAIM    REQUEST  PODS  MEMORY     SHARES  COMPUTE  LIMIT            STATE      LIMIT IS
        node  0    default    claim-1  gpu-0    p     10240 MiB  1       -        mps (10240 MiB)  prepared   in effect
        node  0    default    claim-2  gpu-0    p     4096 MiB   1       -        -                allocated  -
        """)
    assert "Allocated/Total GPU Memory(MiB) of gpu.gpushare.io In Cluster:  14336/81920 (17%)" in details(
        report, Style()
    )


def test_a_wide_table_has_the_amounts_of_each_gpu() -> None:
    """The GPU that is given by claim has one row, with its way and what is free."""
    node, (first,) = shared("10Gi")
    header, *rows = wide(reported(node, of(node, held(first))), Style())
    columns = [header.index(name) for name in ("RESOURCE", "UNIT", "MODE", "ALLOCATED", "TOTAL", "FREE", "PROMISED")]
    cells = [[row[a:b].strip() for a, b in pairwise(columns)] for row in rows]
    assert cells == [
        [DRIVER, "MiB", "memory", "10240", "40960", "30720"],
        [DRIVER, "MiB", "memory", "0", "40960", "40960"],
    ]


def test_a_whole_gpu_is_held_or_free() -> None:
    """By whatever size: a request for memory only selects a whole GPU. Access for administration does not count."""
    node = ClaimNode(TWO)
    claim = node.allocate("1Gi")
    assert amounts(by_claim(node, of(node, held(claim)))) == [(0, 40960, 40960, 0), (1, 40960, 0, 40960)]
    (device,) = claim.devices
    admin = replace(claim, devices=(replace(device, admin_access=True),))
    use = by_claim(node, of(node, held(admin)))
    assert amounts(use) == [(0, 40960, 0, 40960), (1, 40960, 0, 40960)]
    assert [(each.admin_access, each.memory_mib) for each in use.gpus[0].claims] == [(True, None)]


def test_replicas_are_counted_in_shares() -> None:
    """A time-sliced GPU has no memory of its own for each claim."""
    node = ClaimNode(TWO, sharing=time_slicing({"name": "nvidia.com/gpu", "replicas": 4}))
    use = by_claim(node, of(node, held(node.allocate(request()))))
    assert (use.unit, amounts(use)) == ("shares", [(0, 4, 1, 3), (1, 4, 0, 4)])


def test_a_gpu_without_a_share_left_has_no_free_memory() -> None:
    """MPS serves a number of clients; when claims have them all, nobody gets the memory that is left."""
    node = ClaimNode(TWO, sharing=memory(unit="GiB", isolation="mps"))
    most = node.device().capacities["shares"].amount
    use = by_claim(node, of(node, held(node.allocate(request(memory="1Gi", shares=str(most))))))
    assert amounts(use) == [(0, 40960, 1024, 0), (1, 40960, 0, 40960)]


def test_a_tainted_gpu_has_nothing_free() -> None:
    """It keeps what claims have, and says why no other claim gets the rest."""
    node, (first,) = shared("10Gi")
    made = of(node, held(first))
    tainted = replace(node.device(), taints=(DeviceTaint("gpushare/fault", "xid-79", "NoSchedule"),))
    made.put_slice("a", OfferedDevices(DRIVER, NODE, 2, (tainted,)))
    report = reported(node, made)
    assert amounts(report.nodes[0].given_by_claim[0]) == [(0, 40960, 10240, 0)]
    assert "node: GPU0: tainted (gpushare/fault)" in list(summary(report, Style()))


def test_only_the_newest_resource_slices_of_a_pool_count() -> None:
    """A slice of an older generation, which is about to be deleted, doubles no GPU and brings none back."""
    node, _ = shared()
    made = of(node)
    made.put_slice("old", OfferedDevices(DRIVER, NODE, 0, node.devices))
    assert amounts(by_claim(node, made)) == [(0, 40960, 0, 40960), (1, 40960, 0, 40960)]


def test_a_gpu_that_left_the_resource_slices_shows_the_claims_that_have_it() -> None:
    """As units of a GPU that is not offered any more; a device of another DRA driver is none of ours."""
    node, (first,) = shared("10Gi")
    made = of(node, held(first))
    made.put_slice("a", OfferedDevices(DRIVER, NODE, 2, (node.device(1),)))
    (other,) = held(node.allocate("4Gi"))
    made.put_claim("theirs", (replace(other, driver=OTHER_DRIVER),))
    report = reported(node, made)
    (use,) = report.nodes[0].given_by_claim
    assert amounts(use) == [(-1, 0, 10240, 0), (1, 40960, 0, 40960)]
    assert [each.claim for gpu in use.gpus for each in gpu.claims] == [first.id.name]
    made.remove_claim(first.id.uid)
    made.remove_slice("a")
    assert reported(node, made).nodes[0].given_by_claim == ()


def test_a_gpu_that_claims_have_has_no_free_units() -> None:
    """While it changes sides the node may still offer units: nobody should count on them."""
    node, (first,) = shared("10Gi")
    cluster = Cluster()
    cluster.add(memory_node(40, 40, name=NODE))
    units = cluster.report
    assert [gpu.free for gpu in units.nodes[0].resources[0].gpus] == [40, 40]
    (one,) = held(first)
    device = replace(node.device(), gpu=units.nodes[0].resources[0].gpus[0].uuid)
    made = ClusterClaims()
    made.put_slice("a", OfferedDevices(DRIVER, NODE, 1, (device,)))
    made.put_claim("uid", (one,))
    gpus = with_claims(units, made).nodes[0].resources[0].gpus
    assert [(gpu.free, gpu.reason) for gpu in gpus] == [(0, "held by claims: default/claim-1"), (40, None)]


def test_a_limit_that_is_not_in_effect_stands_out() -> None:
    """In the state of the GPU, and as a sentence with the reason."""
    node, (first,) = shared("10Gi")
    report = reported(node, of(node, held(first, effect=not_in_effect("process 7 is not a client of MPS"))))
    lines = list(summary(report, Style()))
    assert any("GPU0 limit not in effect" in line for line in lines)
    assert (
        "node: GPU0: the limit of claim default/claim-1 is not in effect: process 7 is not a client of MPS"
    ) in lines


def test_claims_that_may_not_be_read_are_one_line() -> None:
    """And the GPUs keep the row that says that they are given by claim."""
    node, _ = shared()
    report = reported(node, ClusterClaims("you may not"))
    assert list(summary(report, Style())) == ["", "Claims are not shown: you may not"]
    assert [row.split()[-2:] for row in wide(report, Style()) if "NVIDIA" in row] == [
        ["claim", a_gpu(0).uuid],
        ["claim", a_gpu(1).uuid],
    ]
    assert list(claims(report, Style())) == []


@pytest.mark.parametrize(("detailed", "rows"), [(False, 20), (True, 30)])
def test_the_table_of_claims_is_short_where_nobody_asked_for_more(rows: int, *, detailed: bool) -> None:
    """How many more there are stands below."""
    node, several = shared(*["1Gi"] * 30)
    lines = list(claims(reported(node, of(node, *map(held, several))), Style(), detailed=detailed))
    assert len([line for line in lines if line.startswith("node ")]) == rows
    assert ("… and 10 more; -d shows all" in lines) is not detailed

"""Tests of `gpushare_plugin.node.pods.claimed`: what containers have by the claims and requests that they name."""

from gpushare_plugin.ledger.pod import ContainerClaim, Pod
from gpushare_plugin.ledger.request import PodRequest
from gpushare_plugin.node.pods.claimed import held_by_claim
from tests.snapshots import snapshot
from tests.unit.core.claimed import claim, device, shown, with_claims
from tests.unit.sharing.settings import memory


def test_containers_of_a_known_pod_have_the_requests_that_they_name() -> None:
    """One request, several, or all; init containers, too, and also of a pod that is not known to use the claim."""
    made = snapshot(memory(), 8192, dra={})
    small, large = device(made, 1024, request="small"), device(made, 2048, request="large")
    made = with_claims(made, claim("mine", small, large))
    assert made.claims is not None
    named = [("init", "small"), ("one", "large"), ("both", "small"), ("both", "large"), ("all", ""), ("none", "other")]
    uses = tuple(ContainerClaim(container, "mine", request) for container, request in named)
    pod = Pod("uid", "default", "a", PodRequest(()), container_ids=(("one", "id"),), claims=uses)
    found = held_by_claim([pod], made.claims)
    assert {each.container: [one.request for one in of] for each, of in made.claims.held(found)} == {
        "init": ["small"],
        "one": ["large"],
        "both": ["small", "large"],
        "all": ["small", "large"],
        "none": [],
    }
    assert [(each.uid, each.container_id) for each in found if each.container == "one"] == [("uid", "id")]
    # The kubelet shows whole claims, and no init containers.
    seen = made.claims.holdings([shown(made, "a", "mine", name) for name in ("one", "both", "all")], found)
    assert [each.container for each in seen] == ["one", "both", "all"]
    assert seen[0] == found[1]


def test_a_claim_that_is_not_prepared_here_is_left_out() -> None:
    """Such as one of another DRA driver, or of the same name in another namespace."""
    made = with_claims(snapshot(memory(), 8192, dra={}), claim("mine"))
    uses = (ContainerClaim("main", "mine", ""), ContainerClaim("main", "others", ""))
    assert held_by_claim([Pod("uid", "elsewhere", "a", PodRequest(()), claims=uses)], made.claims) == ()
    assert held_by_claim([Pod("uid", "default", "a", PodRequest(()), claims=uses)], None) == ()

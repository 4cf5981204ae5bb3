"""Tests of `gpushare_plugin.sharing.instances`."""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.sharing.instances import divided
from gpushare_plugin.slices.slice import mig_place
from tests.nodes import a_gpu, a_mig_node
from tests.unit.partition.simulation import A100

NODE = a_mig_node(("3g.20gb", "1g.5gb"), ("7g.40gb",))
FIRST, SECOND = (card.uuid for card in NODE.cards)


def _placed(*starts: int) -> Inventory:
    """Return the node with its instances at these places."""
    pairs = zip(NODE.instances, starts, strict=True)
    placed = (replace(gpu, mig=replace(gpu.mig, start=start)) for gpu, start in pairs if gpu.mig)
    return replace(NODE, instances=tuple(placed))


def test_a_card_that_is_not_named_stays_as_it_is() -> None:
    """Its instances are offered, and nothing is wanted of it."""
    found = divided({FIRST: {}}, _placed(4, 0, 0), {}, frozenset(), manage=False)
    assert found.places == {FIRST: ()}
    assert found.offered == {gpu.uuid for gpu in NODE.instances if gpu.card == SECOND}


def test_held_instances_are_offered_whatever_is_wanted() -> None:
    """Beside them only wanted instances are, each at its place."""
    node = _placed(4, 0, 0)
    held, wanted, _ = (gpu.uuid for gpu in node.instances)
    found = divided({FIRST: {"1g.5gb@0": 1}, SECOND: {}}, node, {FIRST: A100}, {held}, manage=False)
    assert found.offered == {held, wanted}


def test_profiles_without_a_place_keep_what_is_there_and_take_what_is_free() -> None:
    """Nothing overlaps; what does not fit is told."""
    wanted = {FIRST: {"3g.20gb": 2, "1g.5gb": 1}}
    found = divided(wanted, _placed(4, 0, 0), {FIRST: A100}, frozenset(), manage=False)
    assert found.places[FIRST] == (mig_place("3g.20gb@0"), mig_place("3g.20gb@4"))
    (notice,) = found.notices
    assert "1 MIG instances 1g.5gb wanted, 0 fit" in notice
    (notice,) = divided({FIRST: {"3g.20gb": 2}}, _placed(4, 0, 0), {}, frozenset(), manage=False).notices
    assert "gpushare mig has not said yet" in notice


def test_an_instance_of_another_shape_stays_and_takes_its_room() -> None:
    """People made it, such as one of several compute instances: whether a pod holds it or not, it is offered."""
    node = _placed(0, 4, 0)
    shaped = tuple(
        replace(gpu, mig=replace(gpu.mig, profile="1c.3g.20gb")) if gpu.mig and gpu.mig.profile == "3g.20gb" else gpu
        for gpu in node.instances
    )
    node = replace(node, instances=shaped)
    other, idle, _ = node.instances
    for held in (frozenset[str](), frozenset({other.uuid})):
        found = divided({FIRST: {"1g.5gb": 2}}, node, {FIRST: A100}, held, manage=False)
        assert found.places[FIRST] == (mig_place("1g.5gb@4"), mig_place("1g.5gb@5"))
        assert {other.uuid, idle.uuid} <= found.offered
        assert found.lasting == {other.uuid}
        assert not found.notices
    assert divided({FIRST: {}}, node, {}, frozenset(), manage=False).lasting == {other.uuid}
    (notice,) = divided({FIRST: {"7g.40gb": 1}}, node, {FIRST: A100}, frozenset(), manage=False).notices
    assert "1 MIG instances 7g.40gb wanted, 0 fit" in notice


def test_cards_without_mig_mode_are_offered_whole() -> None:
    """But not if they are to be brought into MIG mode, which waits until their pods have ended."""
    card = a_gpu(0, mig_capable=True)
    node = Inventory((card,))
    kept = divided({}, node, {}, frozenset(), manage=False)
    assert kept.offered == {card.uuid}
    assert len(kept.notices) == 1
    assert divided({}, node, {}, frozenset(), manage=True).offered == frozenset()
    assert divided({}, node, {}, frozenset({card.uuid}), manage=True).offered == {card.uuid}

"""Tests of `gpushare_plugin.claims.effects`: whether the limits of claims are in effect, device by device."""

from gpushare_plugin.base.structs import replace
from gpushare_plugin.claims.effects import device_effects, share_effects
from gpushare_plugin.core.effect import IN_EFFECT, Effect, not_in_effect, unknown
from gpushare_plugin.core.prepared_claim import PreparedDevice
from gpushare_plugin.core.usage import ContainerUsage
from tests.snapshots import snapshot
from tests.unit.core.claimed import claim, device
from tests.unit.sharing.settings import memory

NODE = snapshot(memory(isolation="mps"), 8192, 8192, dra={})
SMALL, LARGE = device(NODE, 2048, request="small"), device(NODE, 4096, request="large")


def use(effect: Effect | None, *devices: PreparedDevice, namespace: str = "default") -> ContainerUsage:
    """Return the usage of a container that holds these devices of the first GPU."""
    return ContainerUsage(
        namespace, "pod", "main", "uid", devices[0].gpu, "claim:mine", 1, effect=effect, claimed=devices
    )


def test_each_device_has_the_effect_of_its_own_container() -> None:
    """Two containers with a request each are told apart."""
    broken = not_in_effect("it escaped")
    effects = share_effects([use(IN_EFFECT, SMALL), use(broken, LARGE)])
    assert device_effects(claim("mine", SMALL, LARGE), effects) == (IN_EFFECT, broken)


def test_the_gravest_effect_of_several_containers_counts() -> None:
    """A share that one container escapes is not limited, whatever the others do."""
    broken = not_in_effect("it escaped")
    effects = share_effects([use(IN_EFFECT, SMALL), use(broken, SMALL), use(unknown("no process"), SMALL)])
    assert device_effects(claim("mine", SMALL), effects) == (broken,)


def test_what_is_not_known_is_none() -> None:
    """A claim of which no container was seen, the share of another namespace, and a container without an effect."""
    effects = share_effects([use(None, SMALL), use(IN_EFFECT, LARGE, namespace="other")])
    assert device_effects(claim("mine", SMALL, LARGE), effects) == (None, None)


def test_a_device_without_a_limit_has_no_effect() -> None:
    """Also where a container has a share of the same GPU beside it: access for administration has no limit."""
    admin = replace(device(NODE, 0, request="admin", admin_access=True), share_id="share-admin")
    effects = share_effects([use(IN_EFFECT, SMALL, admin)])
    assert device_effects(claim("mine", SMALL, admin), effects) == (IN_EFFECT, None)

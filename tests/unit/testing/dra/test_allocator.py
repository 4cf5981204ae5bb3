"""Claims are allocated as by kube-scheduler 1.36 (dynamic-resource-allocation/structured/internal/incubating)."""

from typing import Any

import pytest

from gpushare_plugin.testing.claims import AllocationError, ClaimAllocator, ClaimScheduler, SelectorError
from gpushare_plugin.testing.cluster import Store
from gpushare_plugin.testing.kubelet import Container, Pod

DRIVER = "gpu.example.com"
NODE = "node-1"
API = "/apis/resource.k8s.io/v1"
CLASSES = {"gpu": {"metadata": {"name": "gpu"}, "spec": {"selectors": []}}}

Object = dict[str, Any]


def shared(name: str = "gpu-0", memory: Object | None = None, **more: Any) -> Object:
    """Return a shared device of 80 GiB and 100 percent, by default in steps of 1 GiB."""
    policy = {"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}} if memory is None else memory
    capacity = {
        "memory": {"value": "80Gi", "requestPolicy": policy},
        "compute": {"value": "100", "requestPolicy": {"default": "0"}},
    }
    return {"name": name, "allowMultipleAllocations": True, "capacity": capacity, **more}


def whole(name: str, **more: Any) -> Object:
    """Return a device for one claim."""
    return {"name": name, "capacity": {"memory": {"value": "80Gi"}}, **more}


def slice_of(*devices: Object, name: str = "a", pool: str = NODE, generation: int = 1, count: int = 1) -> Object:
    """Return a ResourceSlice."""
    about = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "nodeName": NODE, "pool": about, "devices": devices}}


def request(memory: str | None = None, name: str = "gpu", **more: Any) -> Object:
    """Return a request, perhaps for some memory."""
    capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
    return {"name": name, "exactly": {"deviceClassName": "gpu", **capacity, **more}}


def claim(*requests: Object, name: str = "claim", **more: Any) -> Object:
    """Return a claim."""
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests), **more}}}


def allocated(slices: list[Object], wanted: Object, *others: Object, begins_again: bool = False) -> list[Object]:
    """Return the results for a claim beside others."""
    allocation = ClaimAllocator(slices, others, CLASSES, NODE, begins_again=begins_again).allocate(wanted)
    return list(allocation["devices"]["results"])


def with_share(memory: str, device: str = "gpu-0", **more: Any) -> Object:
    """Return a claim that has a share."""
    result = {"driver": DRIVER, "pool": NODE, "device": device, "shareID": "x", "consumedCapacity": {"memory": memory}}
    return {"status": {"allocation": {"devices": {"results": [{**result, **more}]}}}}


def test_devices_are_tried_by_pool_slice_and_position() -> None:
    """Names of pools and slices decide, not the order of creation; sortPoolsByID, sortSlicesByName."""
    slices = [
        slice_of(whole("first"), pool="z"),
        slice_of(whole("second"), whole("third"), name="b", count=2),
        slice_of(whole("fourth"), name="a", count=2),
    ]
    four = claim(request(count=4))
    assert [each["device"] for each in allocated(slices, four)] == ["fourth", "second", "third", "first"]


def test_an_incomplete_pool_is_not_used_and_the_newest_generation_counts() -> None:
    """kubernetes: pools_incubating.go."""
    old, new = slice_of(whole("old"), generation=1), slice_of(whole("new"), name="b", generation=2)
    assert allocated([old, new], claim(request()))[0]["device"] == "new"
    with pytest.raises(AllocationError, match="cannot allocate all claims"):
        allocated([slice_of(whole("one"), count=2)], claim(request()))


@pytest.mark.parametrize(
    ("policy", "asked", "consumed"),
    [
        ({"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}, None, "80Gi"),
        ({"default": "80Gi", "validRange": {"min": "2Gi", "step": "1Gi"}}, "1Gi", "2Gi"),
        ({"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}}, "1500Mi", "2Gi"),
        ({"default": "80Gi", "validRange": {"min": "1Gi", "max": "40Gi"}}, "41Gi", None),
        ({"default": "10Gi", "validValues": ["10Gi", "20Gi"]}, None, "10Gi"),
        ({"default": "10Gi", "validValues": ["10Gi", "20Gi"]}, "11Gi", "20Gi"),
        ({"default": "10Gi", "validValues": ["10Gi", "20Gi"]}, "21Gi", None),
        ({"default": "0"}, "7", "7"),
        ({"default": "0"}, None, "0"),
    ],
)
def test_requests_are_rounded_by_the_policy(policy: Object, asked: str | None, consumed: str | None) -> None:
    """Default, range and values; what the policy does not permit skips the device (consumable_capacity.go)."""
    slices = [slice_of(shared(memory=policy))]
    if consumed is None:
        with pytest.raises(AllocationError):
            allocated(slices, claim(request(asked)))
        return
    (result,) = allocated(slices, claim(request(asked)))
    assert result["consumedCapacity"] == {"memory": consumed, "compute": "0"}


def test_without_a_policy_a_share_takes_all() -> None:
    """kubernetes: consumable_capacity.go, fillEmptyRequest."""
    device = {**shared(), "capacity": {"memory": {"value": "80Gi"}}}
    assert allocated([slice_of(device)], claim(request()))[0]["consumedCapacity"] == {"memory": "80Gi"}


def test_shares_add_up_and_each_has_an_id_of_its_own() -> None:
    """Two requests may land on one device, `count: 2` takes two; GenerateNewShareID."""
    slices = [slice_of(shared("gpu-0"), shared("gpu-1"))]
    two = allocated(slices, claim(request("40Gi", "a"), request("40Gi", "b")))
    assert [each["device"] for each in two] == ["gpu-0", "gpu-0"]
    assert len({each["shareID"] for each in two}) == 2
    assert [each["device"] for each in allocated(slices, claim(request("1Gi", count=2)))] == ["gpu-0", "gpu-1"]
    assert allocated(slices, claim(request("61Gi")), with_share("20Gi"))[0]["device"] == "gpu-1"
    with pytest.raises(AllocationError):
        allocated(slices[:1], claim(request("61Gi")), with_share("20Gi"), with_share("20Gi", "gpu-1"))


def test_before_kubernetes_1_36_a_request_can_have_a_shared_device_twice() -> None:
    """Each device of a request is searched for from the first on; a whole device is in use then."""
    slices = [slice_of(shared("gpu-0"), shared("gpu-1"))]
    two = allocated(slices, claim(request("30Gi", count=2)), begins_again=True)
    assert [each["device"] for each in two] == ["gpu-0", "gpu-0"]
    assert len({each["shareID"] for each in two}) == 2
    larger = allocated(slices, claim(request("50Gi", count=2)), begins_again=True)
    assert [each["device"] for each in larger] == ["gpu-0", "gpu-1"]
    both = allocated([slice_of(whole("a"), whole("b"))], claim(request(count=2)), begins_again=True)
    assert [each["device"] for each in both] == ["a", "b"]


def test_until_kubernetes_1_36_only_the_latest_device_of_a_request_has_to_differ() -> None:
    """kubernetes#140438: of three devices of a request, the third can repeat the value of the first."""
    slices = [slice_of(*(whole(name, attributes={"root": {"string": root}}) for name, root in ("a1", "b2", "c1")))]
    apart = [{"distinctAttribute": f"{DRIVER}/root"}]
    assert len(allocated(slices, claim(request(count=3), constraints=apart))) == 3
    with pytest.raises(AllocationError):
        allocated(slices, claim(*(request(name=name) for name in "xyz"), constraints=apart))


def test_a_constraint_can_name_an_alternative() -> None:
    """`<request>/<alternative>`, as well as the request (`matches` in constraint.go)."""
    slices = [slice_of(*(shared(name, attributes={"root": {"string": name}}) for name in ("a", "b")))]
    alternative = {"name": "gpu", "firstAvailable": [{"name": "small", **request("1Gi")["exactly"]}]}
    apart = [{"requests": ["other", "gpu/small"], "distinctAttribute": f"{DRIVER}/root"}]
    wanted = claim(request("1Gi", name="other"), alternative, constraints=apart)
    assert [each["device"] for each in allocated(slices, wanted)] == ["a", "b"]


def test_a_capacity_that_the_device_lacks_skips_the_device() -> None:
    """Names are literal; requestsContainNonExistCapacity."""
    with pytest.raises(AllocationError, match="cannot allocate all claims"):
        allocated([slice_of(shared())], claim(request(capacity={"requests": {f"{DRIVER}/memory": "1Gi"}})))


def test_on_a_whole_device_a_request_only_filters() -> None:
    """It has no share and nothing consumed, and is in use then."""
    (result,) = allocated([slice_of(whole("gpu-0"))], claim(request("10Gi")))
    assert result == {"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "gpu-0"}
    used = {"status": {"allocation": {"devices": {"results": [result]}}}}
    with pytest.raises(AllocationError):
        allocated([slice_of(whole("gpu-0"))], claim(request()), used)
    with pytest.raises(AllocationError):
        allocated([slice_of(whole("gpu-0"))], claim(request("81Gi")))


def test_access_for_admins_takes_what_is_in_use_and_is_not_counted() -> None:
    """On a shared device it has to fit at allocation, too; allocateDevice."""
    (result,) = allocated([slice_of(shared())], claim(request("10Gi", adminAccess=True)))
    assert result["adminAccess"]
    admins = with_share("80Gi", adminAccess=True)
    assert allocated([slice_of(shared())], claim(request("80Gi")), admins)
    with pytest.raises(AllocationError):
        allocated([slice_of(shared())], claim(request(adminAccess=True)), with_share("1Gi"))


def test_the_first_alternative_that_fits_is_taken() -> None:
    """`firstAvailable`, named `<request>/<alternative>`."""
    alternatives = [{"name": name, **request(size)["exactly"]} for name, size in (("large", "60Gi"), ("small", "10Gi"))]
    wanted = claim({"name": "gpu", "firstAvailable": alternatives})
    assert allocated([slice_of(shared())], wanted)[0]["request"] == "gpu/large"
    assert allocated([slice_of(shared())], wanted, with_share("40Gi"))[0]["request"] == "gpu/small"


def test_a_later_request_sends_the_search_back() -> None:
    """The first fit is left where another request finds no device then; allocateOne."""
    slices = [
        slice_of(whole("a", attributes={"kind": {"string": "x"}}), whole("b", attributes={"kind": {"string": "y"}}))
    ]
    picky = request(name="second", selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].kind == "x"'}}])
    results = allocated(slices, claim(request(name="first"), picky))
    assert {each["request"]: each["device"] for each in results} == {"first": "b", "second": "a"}


@pytest.mark.parametrize(("constraint", "devices"), [("matchAttribute", ["a", "c"]), ("distinctAttribute", ["a", "b"])])
def test_constraints_hold_requests_together_or_apart(constraint: str, devices: list[str]) -> None:
    """kubernetes: incubating/constraint.go, and the attribute must be there."""
    slices = [slice_of(*(whole(name, attributes={"root": {"string": root}}) for name, root in ("a1", "b2", "c1")))]
    wanted = claim(request(count=2), constraints=[{constraint: f"{DRIVER}/root"}])
    assert [each["device"] for each in allocated(slices, wanted)] == devices


def test_an_attribute_that_a_device_lacks_ends_the_scheduling() -> None:
    """CEL fails, and so does the pod, though another device would fit; selectorsMatch."""
    slices = [slice_of(whole("a"), whole("b", attributes={"kind": {"string": "x"}}))]
    wanted = claim(request(selectors=[{"cel": {"expression": f'device.attributes["{DRIVER}"].kind == "x"'}}]))
    with pytest.raises(SelectorError, match="no such key: kind"):
        allocated(slices, wanted)


@pytest.mark.parametrize(
    ("expression", "device"),
    [
        (f'device.driver == "{DRIVER}"', "gpu-0"),
        ("device.allowMultipleAllocations == false", "gpu-1"),
        (f'device.capacity["{DRIVER}"].memory.compareTo(quantity("81Gi")) < 0', "gpu-0"),
        (f'device.driver == "{DRIVER}" && device.allowMultipleAllocations == false', "gpu-1"),
    ],
)
def test_selectors_of_classes_and_requests_choose(expression: str, device: str) -> None:
    """The forms of CEL that the kit knows."""
    slices = [slice_of(shared("gpu-0"), whole("gpu-1"))]
    assert allocated(slices, claim(request(selectors=[{"cel": {"expression": expression}}])))[0]["device"] == device


def test_a_tainted_device_needs_a_toleration() -> None:
    """`NoSchedule` and `NoExecute`; taints of the effect None only inform."""
    slices = [slice_of(whole("a", taints=[{"key": "k", "effect": "NoSchedule"}]), whole("b"))]
    assert allocated(slices, claim(request()))[0]["device"] == "b"
    tolerant = request(tolerations=[{"key": "k", "operator": "Exists"}])
    assert allocated(slices, claim(tolerant))[0]["device"] == "a"


def test_configs_of_the_class_come_before_those_of_the_claim() -> None:
    """Each of a class once; allocator_incubating.go."""
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}
    classes = {"gpu": {"spec": {"config": [opaque]}}}
    allocation = ClaimAllocator([slice_of(shared())], [], classes, NODE).allocate(
        claim(request("1Gi"), config=[opaque])
    )
    assert [each["source"] for each in allocation["devices"]["config"]] == ["FromClass", "FromClaim"]


def test_claims_are_reserved_and_given_back_in_the_store() -> None:
    """All claims of a pod or none; a forced deletion of the pod frees the capacity at once."""
    store = Store()
    store.create(f"{API}/deviceclasses", {"metadata": {"name": "gpu"}, "spec": {}})
    store.create(f"{API}/resourceslices", slice_of(shared()))
    template = {"metadata": {"name": "share"}, "spec": {"spec": claim(request("60Gi"))["spec"]}}
    store.create(f"{API}/namespaces/default/resourceclaimtemplates", template)
    scheduler = ClaimScheduler(store, NODE)
    first, second = (Pod(name, [Container("main")], claims={"gpu": name}) for name in ("first", "second"))
    for pod in (first, second):
        scheduler.from_template("share", pod, pod.name)
    scheduler.schedule(first)
    with pytest.raises(AllocationError):
        scheduler.schedule(second)
    assert "status" not in store.find(f"{API}/namespaces/default/resourceclaims", "second")[0]
    scheduler.release(first)
    scheduler.schedule(second)
    (claim_of_second,) = store.find(f"{API}/namespaces/default/resourceclaims", "second")
    assert [each["uid"] for each in claim_of_second["status"]["reservedFor"]] == [second.uid]

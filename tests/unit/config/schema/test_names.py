"""Names of extended resources."""

import pytest

from gpushare_plugin.config.schema import names


@pytest.mark.parametrize(
    "name",
    ["nvidia.com/gpu", "aliyun.com/gpu-mem", "a/b", "example.com/A_b.c-9", f"{'a' * 244}/x", f"a/{'x' * 63}"],
)
def test_names_the_kubelet_registers_are_accepted(name: str) -> None:
    """Any name that `IsExtendedResourceName` of Kubernetes accepts can be advertised."""
    assert names.extended_resource(name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gpu-mem", "it has no domain"),
        ("", "it has no domain"),
        ("requests.nvidia.com/gpu", '"requests." is reserved for quotas'),
        ("kubernetes.io/gpu", "reserved for Kubernetes"),
        ("beta.kubernetes.io/gpu", "reserved for Kubernetes"),
        ("Example.com/gpu", "lower-case"),
        ("/gpu", "lower-case"),
        ("a..b/gpu", "lower-case"),
        ("example.com/", "after the domain"),
        ("example.com/-gpu", "after the domain"),
        ("example.com/gpu/mem", "after the domain"),
        ("example.com/gpu\n", "after the domain"),
        (f"a/{'x' * 64}", "63 characters"),
        (f"{'a' * 245}/x", "244 characters"),
    ],
)
def test_names_the_kubelet_refuses_are_refused(name: str, reason: str) -> None:
    """The reason stands in the message, so that nobody has to look the rule up."""
    with pytest.raises(ValueError, match=reason):
        names.extended_resource(name)


def test_the_error_of_a_domain_in_capitals_names_the_right_domain() -> None:
    """Domains are lower case in Kubernetes."""
    with pytest.raises(ValueError, match=r'did you mean "nvidia\.com/gpu"'):
        names.extended_resource("Nvidia.com/gpu")


@pytest.mark.parametrize(("short", "full"), [("gpu", "nvidia.com/gpu"), ("example.com/gpu", "example.com/gpu")])
def test_a_name_without_domain_is_nvidias(short: str, full: str) -> None:
    """`gpu` means `nvidia.com/gpu`, as in NVIDIA's plugin."""
    assert names.with_nvidia_domain(short) == full


@pytest.mark.parametrize(
    "name",
    ["nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-1g.24gb-me", "nvidia.com/mig-1c.3g.40gb"],
)
def test_mig_profiles_can_be_shared(name: str) -> None:
    """Every MIG profile has a resource of its own, media extensions and compute instances included."""
    assert names.shareable(name, ()) == name


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvidia.com/GPU", "nvidia.com/gpu"),
        ("nvidia.com/gpu.shared", "nvidia.com/gpu"),
        ("nvdia.com/gpu", "nvidia.com/gpu"),
        ("nvidia.com/mig-1g5gb", "nvidia.com/mig-1g.5gb"),
        ("nvidia.com/a10", "nvidia.com/a100"),
    ],
)
def test_the_error_of_an_unknown_resource_names_the_nearest_resource(name: str, right: str) -> None:
    """NVIDIA's plugin would skip the entry in silence and advertise whole GPUs."""
    with pytest.raises(ValueError, match=f'did you mean "{right}"'):
        names.shareable(name, {"nvidia.com/a100"})


@pytest.mark.parametrize(
    "name", ["aliyun.com/gpu-memory", "aliyun.com/gpumem", "aliyum.com/gpu-mem", "aliyun.com/GPU-mem"]
)
def test_clear_misspellings_of_the_memory_resource_are_refused(name: str) -> None:
    """Pods that ask for the right name would wait for ever."""
    with pytest.raises(ValueError, match=r'did you mean "aliyun\.com/gpu-mem"'):
        names.memory_resource(name)


@pytest.mark.parametrize(
    "name",
    [
        "aliyun.com/gpu-mem",
        "aliyun.com/gpu-mem-a100",
        "aliyun.com/gpu-mem2",
        "example.com/gpu-memory",
        "acme.io/vram",
        "nvidia.com/gpumem",
    ],
)
def test_memory_can_have_the_name_of_any_extended_resource(name: str) -> None:
    """Any extended resource can stand for memory, also a second one beside the usual."""
    assert names.memory_resource(name) == name

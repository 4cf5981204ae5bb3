"""Tests of `gpushare_plugin.config.skeleton`."""

import pytest

from gpushare_plugin.config.skeleton import advice, skeleton

WITHOUT_INDENTATION = """\
version: v1
flags:
migStrategy: mixed
sharing:
timeSlicing:
failRequestsGreaterThanOne: true
resources:
- name: nvidia.com/gpu
rename: 'nvidia.com/gpu.shared'   # a comment
devices: [0, 1]
replicas: 4
"""
SHARED = "version: v1\nsharing:\n\ttimeSlicing:\n\tresources:\n\t- name: nvidia.com/gpu\n\treplicas: 4\n"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        # What the article of seed 002 printed: without its section, and without the name.
        (
            "version: v1\n\t- name:\n  \treplicas: 5\n",
            "{version: v1, sharing: {timeSlicing: {resources: [{name: …, replicas: 5}]}}}",
        ),
        (
            "version: v1\nsharing:\n\tmps:\n\trenameByDefault: true\n\tresources:\n\t- name: a.b/c\n\treplicas: 4\n",
            "{version: v1, sharing: {mps: {renameByDefault: true, resources: [{name: a.b/c, replicas: 4}]}}}",
        ),
        (
            "version: v1\nsharing:\nmemory:\n  resources:\n\t- unit: 512MiB\n",
            "{version: v1, sharing: {memory: {resources: [{unit: 512MiB}]}}}",
        ),
        (
            f"{SHARED}\t- replicas: 2\n\tname: nvidia.com/mig-1g.5gb\n",
            (
                "{version: v1, sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}, "
                "{replicas: 2, name: nvidia.com/mig-1g.5gb}]}}}"
            ),
        ),
        (
            "version: v1\nsharing:\nmps:\nsizes:\n- devices: all\nslices:\n- size: 10gb\ncount: 2\n- size: 20gb\n",
            "{version: v1, sharing: {mps: {sizes: [{devices: all, slices: [{size: 10gb, count: 2}, {size: 20gb}]}]}}}",
        ),
        (
            "version: v1\nsharing: # a comment: of a section\n\tmemory:\n\tresources:\n\t- name: a.b/c\n\tunit: GiB\n",
            "{version: v1, sharing: {memory: {resources: [{name: a.b/c, unit: GiB}]}}}",
        ),
        (
            WITHOUT_INDENTATION,
            (
                "{version: v1, flags: {migStrategy: mixed}, sharing: {timeSlicing: {failRequestsGreaterThanOne: true, "
                "resources: [{name: nvidia.com/gpu, rename: nvidia.com/gpu.shared, devices: …, replicas: 4}]}}}"
            ),
        ),
    ],
)
def test_keys_are_shown_in_their_places(text: str, meant: str) -> None:
    """Whatever their indentation was; values stay, and what cannot be a plain value is left open."""
    assert skeleton(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpus:\n\t- memory: 16GiB\n",
        "version: v1\n\tflavour: sweet\n",
        "version: v1\n\t- name: a\n",
        "version: v1\n" + "\t- name: a\n  replicas: 2\n" * 20,
        "version: v1\n\t- name: a\n" + " " * 1_000_000 + "x\n",
    ],
    ids=["nothing", "another file", "an unknown key", "one key of many sections", "a long text", "a long line"],
)
def test_a_config_that_is_not_certain_is_not_shown(text: str) -> None:
    """Nobody is told to write what is not known to be meant."""
    assert skeleton(text) is None


@pytest.mark.parametrize(
    "more",
    [
        "\tname: nvidia.com/mig-1g.5gb\n\treplicas: 2\n",
        "\t- {name: nvidia.com/mig-1g.5gb, replicas: 2}\n",
        '\t- "name": nvidia.com/mig-1g.5gb\n',
        "sharing:\n\ttimeSlicing:\n\tresources:\n\t- name: nvidia.com/mig-1g.5gb\n\treplicas: 2\n",
        "\tmps:\n\tresources: [{name: nvidia.com/gpu}]\n\t- name: nvidia.com/large\n\treplicas: 2\n",
        "\trename: nvidia.com/gpu.shared #" + " -" * 100 + "\n",
        "\n" * 300 + "\t- name: nvidia.com/mig-1g.5gb\n\treplicas: 2\n",
    ],
    ids=[
        "a key repeats without a dash",
        "an entry in braces",
        "a key in quotes",
        "a section repeats",
        "a list in brackets",
        "a long line",
        "many lines",
    ],
)
def test_a_skeleton_leaves_no_key_out(more: str) -> None:
    """Where a key has no certain place of its own, none is shown: a shorter config was not meant."""
    assert skeleton(SHARED) is not None
    assert skeleton(SHARED + more) is None


def test_the_advice_says_that_values_were_not_checked() -> None:
    """They are repeated as they are, also where no config can have them."""
    assert advice("version: v1\nsharing:\nmemory:\nresources:\n- name: a.b/c\nunit: 100TiB\n") == (
        "If the indentation was lost, this config was meant (its values were not checked): "
        "{version: v1, sharing: {memory: {resources: [{name: a.b/c, unit: 100TiB}]}}}"
    )

"""Tests of the sentences on the isolation that was chosen for GPUs."""

from gpushare_plugin.observe.node.report import chosen_isolations


def test_a_reason_that_keeps_several_isolations_off_is_said_once() -> None:
    """The names of the isolations that were not chosen stand before their common reason, other reasons after it."""
    reasons = ("driver: the driver is too old", "driver+mps: the driver is too old", "mps: no device nodes: none")
    assert list(chosen_isolations({"0": ("none", reasons), "1": ("none", reasons)})) == [
        "GPU 0, 1: isolation none, not driver or driver+mps: the driver is too old, not mps: no device nodes: none"
    ]


def test_a_first_choice_has_no_reasons() -> None:
    """The sentence ends with the name of the isolation."""
    assert list(chosen_isolations({"0": ("driver", ())})) == ["GPU 0: isolation driver"]

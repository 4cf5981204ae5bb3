"""Tests of the file that shows a simulation, and of its curves."""

import base64
import hashlib
import re
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from gpushare_plugin.simulator.comparison import Mode, Simulation, compare
from gpushare_plugin.simulator.scenario import Scenario
from gpushare_plugin.web.curves import HEIGHT, curves
from gpushare_plugin.web.simulation_report import simulation_report
from tests.unit.simulator.traces import a_trace

POLICIES = ("packing", "random")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def shown(mode: Mode) -> str:
    """Return the file of two policies with two seeds, of nodes and pods with a source that is no plain text."""
    scenario = Scenario(a_trace(), "Nodes from <script>alert(1)</script>\u202e", ["3 of 4 nodes removed & gone"])
    return simulation_report(compare(Simulation(scenario, POLICIES, mode, 95, 2), 1, lambda: None), NOW)


@pytest.mark.parametrize("mode", ["fill", "churn"])
def test_the_file_has_two_pictures_with_a_line_for_each_policy_and_the_numbers(mode: Mode) -> None:
    """What was simulated stands first; the first table has the least and the most of the seeds."""
    page = shown(mode)
    assert page.index("3 of 4 nodes removed &amp; gone") < page.index("<svg")
    assert page.count("<svg") == 2
    assert len(re.findall(r'<polyline class="c\d+"', page)) == 2 * len(POLICIES)
    assert page.count('<p class="names">') == 2
    assert "mean of the seeds 1 to 2, in brackets the least and the most" in page
    spreads = re.findall(r"<td class=\"number\">(\S+) \((\S+) to (\S+)\)</td>", page)
    assert len(spreads) == len(POLICIES) * (6 if mode == "fill" else 2)
    assert all(float(least) <= float(mean) <= float(most) for mean, least, most in spreads)


def test_the_file_runs_and_loads_nothing() -> None:
    """Its own style sheet is all that its policy allows, and what people named is text."""
    page = shown("fill")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\u202e" not in page
    assert not re.findall(r'\s(?:src|href|style|on\w+)="', page)
    (style,) = re.findall("<style>(.*?)</style>", page, re.DOTALL)
    (allowed,) = re.findall("'sha256-(.*?)'", page)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() == allowed


@pytest.mark.parametrize(
    ("values", "rows"),
    [
        ([70.0, 96.2], ["70", "80", "90", "100"]),
        ([0.0, 0.0], ["0", "0.2"]),
        ([50.0, 50.0], ["50", "50.2"]),
        ([0.0, 289.3], ["0", "100", "200", "300"]),
    ],
)
def test_axes_have_round_numbers_around_all_values(values: list[float], rows: list[str]) -> None:
    """Also where all values are equal; every point is between the least and the most number."""
    picture = curves("", "", "", ["1", "2"], {"a": values})
    assert [row.text for row in picture.rows] == rows
    assert all(picture.rows[-1].at <= down <= picture.rows[0].at for _, down in picture.curves[0].points)


def test_numbers_of_many_columns_have_room() -> None:
    """Of a thousand seeds, every 63rd has its number; the lines have all of them."""
    seeds = [str(number) for number in range(1, 1001)]
    picture = curves("", "", "", seeds, {"a": [0.0] * 1000})
    assert [tick.text for tick in picture.columns][:3] == ["1", "64", "127"]
    assert len(picture.columns) == 16
    assert len(picture.curves[0].points) == 1000


def test_eight_lines_can_be_told_apart() -> None:
    """Eight lines have eight colours, and the last four are dashed."""
    classes = [curve.color for curve in curves("", "", "", ["1"], {str(number): [0] for number in range(8)}).curves]
    assert len({each.split()[0] for each in classes}) == 8
    assert ["dashed" in each for each in classes] == [False] * 4 + [True] * 4


@pytest.mark.parametrize("start", [-9.0, 9.0])
def test_names_of_lines_are_apart(start: float) -> None:
    """In the order of the ends of the lines, and in the picture, at its top and at its bottom."""
    values = {str(number): [start, number % 3 / 10 + number / 100] for number in range(12)}
    places = {curve.name: curve.name_at for curve in curves("", "", "", ["1", "2"], values).curves}
    ends = sorted(values, key=lambda name: -values[name][-1])
    found = [places[name] for name in ends]
    assert all(after - before >= 18 for before, after in pairwise(found))
    assert found[0] >= 0
    assert found[-1] < HEIGHT

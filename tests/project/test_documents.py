"""Tests of the documents that are made from the code."""

import re
import xml.etree.ElementTree as ET
from html import escape
from pathlib import Path

import pytest
from msgspec.structs import fields

from generators import (
    alerts_page,
    command_line,
    config_tables,
    events_table,
    metrics_table,
    recorded,
    refusals_table,
    simulation_page,
)
from generators.dashboard import grafana, picture
from generators.dashboard.panel import Panel, Query
from generators.dashboard.picture import Line
from generators.dashboard.rows import ROWS
from generators.pictures import pictures
from gpushare_plugin.ledger.node_record import GpuRecord, NodeRecord, ResourceRecord
from tests.browser.screens import screens
from tests.unit.ledger.objects import by_the_daemon, by_the_extender

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_command_line_page_is_not_stale() -> None:
    """The page says what the commands say; `make generate` writes it."""
    assert command_line.PAGE.read_text() == command_line.page(), "run make generate"


def test_the_keys_of_the_config_file_are_not_stale() -> None:
    """The page has every key of the schema; `make generate` writes it."""
    assert config_tables.PAGE.read_text() == config_tables.page(), "run make generate"


def test_the_keys_of_simulated_gpus_are_not_stale() -> None:
    """The page has every key of the file, as the file is read; `make generate` writes it."""
    assert simulation_page.PAGE.read_text() == simulation_page.page(), "run make generate"


def test_the_table_of_metrics_is_not_stale() -> None:
    """The page says what is served, every metric of it; `make generate` writes it."""
    assert metrics_table.PAGE.read_text() == metrics_table.page(), "run make generate"


def test_the_dashboard_is_not_stale() -> None:
    """The chart has the dashboard that the generator describes; `make generate` writes it."""
    assert grafana.FILE.read_text() == grafana.dashboard(), "run make generate"


def test_the_recording_rules_are_not_stale() -> None:
    """The chart has the rules that their table describes; `make generate` writes them."""
    assert {path: path.read_text() for path in recorded.files()} == recorded.files(), "run make generate"


def test_the_table_of_events_is_not_stale() -> None:
    """The page says what can happen, every Event of it; `make generate` writes it."""
    assert events_table.PAGE.read_text() == events_table.page(), "run make generate"


def test_the_refusals_of_claims_are_not_stale() -> None:
    """The page says why claims are not prepared, every reason; `make generate` writes it."""
    assert refusals_table.PAGE.read_text() == refusals_table.page(), "run make generate"


def test_the_alerts_are_not_stale() -> None:
    """The page says what the rules say; `make generate` writes it."""
    assert alerts_page.PAGE.read_text() == alerts_page.page(), "run make generate"


def test_each_alert_has_one_paragraph_of_the_rules() -> None:
    """The page has no paragraph of an earlier run that belongs to no section."""
    paragraphs = re.findall(r"^\*\*(?:Critical|Warning|Info), ", alerts_page.PAGE.read_text(), re.MULTILINE)
    assert len(paragraphs) == len(list(alerts_page.alerts()))


@pytest.mark.parametrize("missing", ["## GpuOverused", "**Do:** See [usage]"])
def test_an_alert_without_a_section_is_named(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator writes into no other section: a person writes the heading and the remedy first."""
    page = tmp_path / "alerts.md"
    page.write_text(alerts_page.PAGE.read_text().replace(missing, "", 1))
    monkeypatch.setattr(alerts_page, "PAGE", page)
    with pytest.raises(SystemExit, match=r"docs/alerts\.md has no section '## GpuOverused' with '\*\*Do:\*\*'"):
        alerts_page.page()


def test_a_new_section_needs_only_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paragraph of the rules comes before the remedy of the section, and replaces nothing that a person wrote."""
    whole = alerts_page.PAGE.read_text()
    page = tmp_path / "alerts.md"
    page.write_text(re.sub(r"(## GpuOverused\n\n)\*\*Warning, .+?(?=\*\*Do:)", r"\1", whole, count=1, flags=re.DOTALL))
    assert page.read_text() != whole
    monkeypatch.setattr(alerts_page, "PAGE", page)
    assert alerts_page.page() == whole


def test_the_pictures_are_not_stale() -> None:
    """README shows what the demonstration prints, and the GPUs as it shares them; `make pictures` draws them."""
    drawn = pictures()
    assert {path: path.read_text() for path in drawn} == drawn


async def test_the_pictures_of_commands_are_not_stale() -> None:
    """They show what `list` and `inspect` print; `make generate` draws them."""
    drawn = await screens()
    assert {path: path.read_text() for path in drawn} == drawn, "run make generate"


def test_the_picture_of_the_dashboard_has_its_panels() -> None:
    """Each row with its panels, blank only where no alert fires; `make dashboard-picture` draws it."""
    text = picture.PICTURE.read_text()
    rows = re.findall(r'class="row">(.*?)</text>', text)
    titles = re.findall(r'class="title">(.*?)</text>', text)
    assert rows == list(ROWS)
    assert titles == [escape(panel.title) for panels in ROWS.values() for panel in panels]
    assert text.count(picture.BLANK) <= 1


def test_panels_are_drawn_with_their_units() -> None:
    """What a query comes to is a curve or a number with the unit of its panel; nothing is said to be nothing."""
    line = Line("node-a", {0.0: 0.0, 45.0: 3 * 2**30, 90.0: 2**30})
    bytes_ = (Query("", unit="bytes"),)
    curve, number = Panel("Memory <1>", "", bytes_, "bytes"), Panel("Now", "", bytes_, "bytes", kind="stat")
    text = picture.drawn({"Row": [(curve, [line]), (number, [line]), (Panel("Blank", "", bytes_), [])]})
    root = ET.fromstring(text)  # noqa: S314 - our own text
    said = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert said[:5] == ["Row", "Memory <1>", "0.0 GiB", "1.5 GiB", "3.0 GiB"]
    assert said[8:] == ["node-a", "Now", "1.0 GiB", "node-a", "Blank", picture.BLANK]
    (drawn,) = root.iter("{http://www.w3.org/2000/svg}polyline")
    heights = [int(point.partition(",")[2]) for point in drawn.attrib["points"].split()]
    assert heights[0] > heights[2] > heights[1]


def test_tables_and_heat_maps_are_drawn() -> None:
    """A table has its columns and rows; a heat map a cell where something is, the darker the more."""
    columns = (Query("", "GPUs"), Query("", "Memory", "bytes"), Query("", "Empty"))
    shown = Panel("Nodes", "", columns, width=24, kind="table", by={"node": "Node"})
    lines = [Line("node-a | GPUs", {0.0: 1.0, 3.0: 2.0}), Line("node-a | Memory", {3.0: 2**30})]
    cells = [Line("0", {0.0: 1.0, 3.0: 1.0}), Line("1", {0.0: 1.0, 3.0: 4.0})]
    text = picture.drawn({"Row": [(shown, lines), (Panel("Map", "", columns[:1], kind="heatmap"), cells)]})
    root = ET.fromstring(text)  # noqa: S314 - our own text
    said = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert said == ["Row", "Nodes", "GPUs", "Memory", "node-a", "2", "1.0 GiB", "Map", "0 %", "100 %"]
    drawn = [each.get("opacity") for each in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert [each for each in drawn if each] == ["0.25", "0.75"]


def test_a_level_line_has_two_points() -> None:
    """The picture stays small, however long nothing changes."""
    level = Line("node-a", {**{float(second): 2.0 for second in range(0, 90, 3)}, 90.0: 1.0})
    text = picture.drawn({"Row": [(Panel("Level", "", (Query(""),), most=2), [level])]})
    (drawn,) = ET.fromstring(text).iter("{http://www.w3.org/2000/svg}polyline")  # noqa: S314 - our own text
    assert len(drawn.attrib["points"].split()) == 3


def test_the_pictures_fit_a_page() -> None:
    """They are small SVG files that load nothing from elsewhere."""
    made = {**pictures(), picture.PICTURE: picture.PICTURE.read_text()}
    for path, text in made.items():
        ET.fromstring(text)  # noqa: S314 - our own text
        assert path.stat().st_size < 96 << 10
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rows_have_the_columns_of_their_table(page: Path) -> None:
    """A column that a table gets has a cell in each row: what is said of the others is said of a new value."""
    columns, short = 0, []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        cells = len(re.findall(r"(?<!\\)\|", line)) - 1 if line.startswith("|") else 0
        if cells and columns and cells != columns:
            short.append(f"{page.relative_to(ROOT)}:{number}: {cells} cells, and the table has {columns} columns")
        columns = (columns or cells) if cells else 0
    assert short == [], "\n".join(short)


def test_the_keys_of_the_record_are_explained() -> None:
    """`docs/cluster.md` says of each key of the annotation `gpushare/gpus` what it means: others read it, too."""
    page = (ROOT / "docs/cluster.md").read_text()
    part = page.partition("- **Annotation** `gpushare/gpus`")[2].partition("\n### ")[0]
    keys = [each.encode_name for kind in (NodeRecord, GpuRecord, ResourceRecord) for each in fields(kind)]
    assert [key for key in keys if not re.search(rf"[`\"]{key}[`\"]", part)] == []


@pytest.mark.parametrize("key", [*(by_the_extender() | by_the_daemon())])
def test_annotations_on_pods_are_explained(key: str) -> None:
    """`docs/scheduling.md` has each annotation that is written on pods, and by whom; Aliyun's by their ends."""
    table = (ROOT / "docs/scheduling.md").read_text().partition("| annotation on pods |")[2].partition("\n\n")[0]
    end = key.removeprefix("ALIYUN_COM_GPU_MEM")
    assert f"`{key}`" in table or f"`{end}`" in table, f"the table of annotations in docs/scheduling.md has no {key}"


def test_each_decision_is_listed() -> None:
    """`docs/adr/README.md` has a line for each record, with the title of the record."""
    folder = ROOT / "docs/adr"
    records = {each.name: each.read_text().partition("\n")[0].removeprefix("# ") for each in folder.glob("0*.md")}
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert sorted((name, title) for title, name in listed) == sorted(records.items())


def test_links_of_pages_lead_to_files_and_sections_that_exist() -> None:
    """Each link of a page to a file of the repository, or to a section of a page, is right."""
    links = [
        (page, target)
        for page in PAGES
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if not target.startswith("https://")
    ]
    assert len(links) > 50
    assert [f"{page.relative_to(ROOT)}: {target}" for page, target in links if not leads_somewhere(page, target)] == []


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether a link of a page leads to a file, and to a section of it where it names one."""
    name, _, section = target.partition("#")
    file = page.parent / name if name else page
    return file.exists() and (not section or section in sections(file))


def sections(page: Path) -> set[str]:
    """Return the names by which links lead to the sections of a page: its headings, as GitHub changes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}

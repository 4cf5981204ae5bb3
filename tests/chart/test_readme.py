"""Tests of the chart's README.md: the table of values is complete."""

import json

from generators import chart_schema, chart_values


def test_the_table_of_values_is_not_stale() -> None:
    """The page says what the comments in values.yaml say; `make generate` writes it."""
    assert chart_values.PAGE.read_text() == chart_values.page()


def test_every_value_is_explained() -> None:
    """No value of the chart is without a comment."""
    found = list(chart_values.values())
    assert len(found) > 60
    assert [each.place for each in found if not each.meaning] == []


def test_every_value_of_ours_is_in_the_table() -> None:
    """Each property of the schema that is not one of another chart only has a row, or rows below it."""
    schema = json.loads(chart_schema.VALUES_SCHEMA.read_text())["properties"]
    rows = {each.place.split(".")[0] for each in chart_values.values()}
    foreign = {"devicePlugin", "gfd", "nfd"}
    ours = {key for key, each in schema.items() if each.get("$ref") != "#/definitions/foreign"}
    assert ours - foreign == rows

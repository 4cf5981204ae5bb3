"""What is seen from outside is what the golden files have."""

import json
from pathlib import Path

import pytest

from tests.process.daemon import gpushare
from tests.skin.golden import GOLDEN, differences
from tests.skin.record import SCENES, main

SCHEMA = Path(__file__).parents[2] / "charts/gpushare/values.schema.json"


@pytest.mark.parametrize("scene", SCENES)
async def test_scenes_show_what_their_golden_files_have(scene: str, short_path: Path) -> None:
    """Nothing that others see has changed."""
    texts = await SCENES[scene](short_path)
    assert recorded_in({name.partition("/")[0] for name in texts}) <= texts.keys(), "python -m tests.skin.record"
    if difference := differences(texts):
        pytest.fail(difference, pytrace=False)


def recorded_in(folders: set[str]) -> set[str]:
    """Return the names of the golden files in these folders, of which each is that of one scene."""
    files = (file for folder in folders for file in (GOLDEN / folder).rglob("*") if file.is_file())
    return {str(file.relative_to(GOLDEN)) for file in files}


async def test_the_schema_is_that_of_the_chart() -> None:
    """`gpushare schema` prints what the chart checks configs with."""
    schema = json.loads((await gpushare("schema")).output)
    assert schema.pop("$schema")
    assert schema == json.loads(SCHEMA.read_text())["definitions"]["config"]


def test_an_unknown_scene_is_named_with_the_scenes() -> None:
    """Nothing is recorded by the names of files or folders."""
    with pytest.raises(SystemExit, match="no scene 'golden', 'nosuch'; the scenes are 'commands', 'kubelet', "):
        main(["golden", "nosuch", "node"])

"""Tests of `gpushare_plugin.config.sources.choice`: one file or a directory of named ones."""

import asyncio
from pathlib import Path

import pytest

from gpushare_plugin.config.loading.load import load
from gpushare_plugin.config.sources.choice import Configs, Fallback, watch_directory
from tests.process.daemon import ConfigMapMount
from tests.waiting import PATIENCE

WHOLE = "version: v1\n"
SLICES = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


def mount(folder: Path, *names: str) -> Path:
    """Make a ConfigMap mount with a config of each name; `default` is another than the rest."""
    folder.mkdir()
    (folder / "..data").mkdir()
    for name in names:
        (folder / "..data" / name).write_text(WHOLE if name == "default" else SLICES)
        (folder / name).symlink_to(f"..data/{name}")
    return folder


def problem(configs: Configs, name: str | None = None) -> str:
    """Return the one thing wrong."""
    loaded = configs.load(name)
    assert loaded.config is None
    (line,) = loaded.lines(loaded.problems)
    return line


def test_names_of_configs_are_the_files_of_the_directory(tmp_path: Path) -> None:
    """The names are the keys of the ConfigMap, not what the kubelet puts beside them."""
    assert Configs(directory=mount(tmp_path / "configs", "a", "b")).names() == {"a", "b"}
    assert Configs(directory=tmp_path / "nowhere").names() == frozenset()
    assert Configs().names() == frozenset()


@pytest.mark.parametrize(
    ("names", "default", "fallbacks", "expected"),
    [
        (("default", "a"), "a", ("named",), SLICES),
        (("default", "a"), None, ("named", "single"), WHOLE),
        (("a",), None, ("named", "single"), SLICES),
        (("a", "b"), None, ("single", "empty"), None),
    ],
    ids=["default", "named", "single", "empty"],
)
def test_the_default_config_goes_before_the_fallbacks(
    tmp_path: Path, names: tuple[str, ...], default: str | None, fallbacks: tuple[Fallback, ...], expected: str | None
) -> None:
    """The default goes before the fallbacks, and these are tried in turn."""
    configs = Configs(directory=mount(tmp_path / "configs", *names), default=default, fallbacks=fallbacks)
    file = tmp_path / "expected.yaml"
    file.write_text(expected or "")
    assert configs.load().config == load(file if expected else None).config


def test_a_config_that_is_missing_is_a_problem(tmp_path: Path) -> None:
    """A default that is not there, no fallback that finds one, and a name without a directory are problems."""
    directory = mount(tmp_path / "configs", "a", "b")
    assert 'found no config "c"; there are a, b' in problem(Configs(directory=directory, default="c"))
    assert "no fallback (named, single) finds one; there are a, b" in problem(
        Configs(directory=directory, fallbacks=("named", "single"))
    )
    assert 'found no config "a"; named configs need --config-directory' in problem(Configs(), "a")


def test_the_suffix_of_a_file_is_a_part_of_the_name_of_its_config(tmp_path: Path) -> None:
    """A name without the suffix is answered with the name that is meant."""
    directory = mount(tmp_path / "configs", "a", "mig.yaml")
    assert 'found no config "mig"; did you mean "mig.yaml"? The name of a config is that of its whole file' in (
        problem(Configs(directory=directory, default="mig"))
    )


async def test_changes_in_a_directory_of_configs_are_told_once(tmp_path: Path) -> None:
    """Each swap of the ConfigMap that changes a content is told, and files that come and go are."""
    folder = tmp_path / "configs"
    configmap = ConfigMapMount(folder, "one")
    news: asyncio.Queue[None] = asyncio.Queue()
    watching = asyncio.create_task(watch_directory(folder, lambda: news.put_nowait(None), every=0.01))
    await asyncio.sleep(0)  # the first look
    async with asyncio.timeout(PATIENCE):
        configmap.write("two")
        await news.get()
        (folder / "another").write_text("three")
        await news.get()
        (folder / "another").unlink()
        await news.get()
    watching.cancel()
    assert news.empty()

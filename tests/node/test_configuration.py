"""Tests of `gpushare_plugin.node.configuration`: what is reported of configs that are wrong or unreadable."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_plugin.base.errors import ConfigError
from gpushare_plugin.config.loading.load import Loaded, load
from gpushare_plugin.core.gpu import Inventory
from gpushare_plugin.node.configuration import Configuration, Reloads, accept
from gpushare_plugin.node.news.news import (
    ConfigChanged,
    ConfigDoesNotFitGpus,
    ConfigReadable,
    ConfigRejected,
    ConfigUnreadable,
    ConfigValidAgain,
    News,
    NewsItem,
)
from tests.nodes import a_node

GOOD = "version: v1\nsharing: {memory: {resources: [{name: aliyun.com/gpu-mem}]}}\n"
OTHER = GOOD.replace("gpu-mem", "gpu-mem, unit: MiB")
WRONG = GOOD.replace("memory:", "memry:")
WRONG_OTHERWISE = GOOD.replace("name:", "nam:")

Write = Callable[[str], Loaded]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    """Return a function that writes the config file and loads it."""

    def written(text: str) -> Loaded:
        (tmp_path / "config.yaml").write_text(text)
        return load(tmp_path / "config.yaml")

    return written


def kinds(heard: list[NewsItem]) -> list[type]:
    """Return what happened since the last question, by kind."""
    found = [type(item) for item in heard]
    heard.clear()
    return found


def test_a_config_that_is_right_again_is_reported_once(written: Write) -> None:
    """Whoever undoes a bad edit sees in the log that it was noticed; an edit that changes nothing is none."""
    heard: list[NewsItem] = []
    inventory = a_node(8192)
    configuration = Configuration(accept(written(GOOD), inventory), inventory, News(heard.append))
    configuration.reload(written(WRONG), inventory)
    assert kinds(heard) == [ConfigRejected]
    assert configuration.notices
    for expected in ([ConfigValidAgain], []):
        configuration.reload(written(GOOD), inventory)
        assert kinds(heard) == expected
        assert not configuration.notices


def test_the_same_mistakes_are_reported_once(written: Write) -> None:
    """SIGHUP and the watch of the file each have a bad edit read; its mistakes are logged once, new ones again."""
    heard: list[NewsItem] = []
    inventory = a_node(8192)
    configuration = Configuration(accept(written(GOOD), inventory), inventory, News(heard.append))
    for text, expected in (
        (WRONG, [ConfigRejected]),
        (WRONG, []),
        (WRONG_OTHERWISE, [ConfigRejected]),
        (OTHER, [ConfigChanged]),
        (WRONG_OTHERWISE, [ConfigRejected]),
    ):
        configuration.reload(written(text), inventory)
        assert kinds(heard) == expected


def test_a_config_that_is_gone_is_told_in_place_of_its_mistakes(written: Write) -> None:
    """The notices say that the config before stays in effect, until there is one again."""
    inventory = a_node(8192)
    configuration = Configuration(accept(written(GOOD), inventory), inventory, News(lambda _: None))
    configuration.reload(written(WRONG), inventory)
    configuration.keep("config.yaml: No such file or directory")
    assert configuration.notices == (
        "the previous configuration stays in effect: config.yaml: No such file or directory",
    )
    configuration.reload(written(GOOD), inventory)
    assert not configuration.notices


async def test_a_config_that_can_be_read_again_is_reported_once() -> None:
    """As often as it cannot be read and is asked for, it is reported; that it can be again, once."""
    heard: list[NewsItem] = []
    used: list[Loaded] = []
    answers = iter([True, True, False, False])

    def read() -> Loaded:
        if next(answers):
            raise ConfigError(["config.yaml: cannot be read: Input/output error"])
        return load(None)

    kept: list[str] = []
    reloads = Reloads(read, used.append, kept.append, News(heard.append))
    for expected in ([ConfigUnreadable], [ConfigUnreadable], [ConfigReadable], []):
        await reloads.reload()
        assert kinds(heard) == expected
    assert len(used) == 2
    assert kept == ["config.yaml: cannot be read: Input/output error"] * 2


async def test_a_load_does_not_keep_the_daemon_from_ending() -> None:
    """A load can wait for a program of the host, and the process does not wait for the load when it ends."""
    daemons: list[bool] = []

    def read() -> Loaded:
        daemons.append(threading.current_thread().daemon)
        return load(None)

    await Reloads(read, lambda _: None, lambda _: None, News(lambda _: None)).reload()
    assert daemons == [True]


def test_a_size_in_the_config_counts_for_the_gpus_that_are_left(written: Write) -> None:
    """The GPU that stays, where another one vanishes that the config names, keeps the memory that the config gives."""
    text = GOOD.replace("gpu-mem", "gpu-mem, devices: [0, 1]") + "unreportedMemory: [{pattern: '*', size: 96GiB}]\n"
    inventory = a_node(0, 0)
    heard: list[NewsItem] = []
    configuration = Configuration(accept(written(text), inventory), inventory, News(heard.append))
    configuration.fit(Inventory(inventory.cards[:1]))
    assert ConfigDoesNotFitGpus in kinds(heard)
    (resource,) = configuration.plan.resources
    assert [(gpu.memory_mib, len(units)) for gpu, units in resource.units.by_gpu.items()] == [(98304, 96)]

"""What holds for any file at all."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.config.loading.load import Loaded, Override, dump, load
from gpushare_plugin.config.loading.scalars import write
from gpushare_plugin.config.schema.fields import keys, sections

UUID = "b1028956-cfa2-0990-bf4a-5da9abb51763"
KEYS = sorted({key for _, section in sections() for key in keys(section)} | {"mig"})
WORDS = [
    *(
        "none",
        "mixed",
        "envvar",
        "uuid",
        "packed",
        "spread",
        "auto",
        "tegra",
        "v1",
        "all",
        "GiB",
        "256MiB",
        "GB",
        "/",
        "*",
    ),
    *(
        "gpu",
        "nvidia.com/gpu",
        "nvidia.com/gpus",
        "aliyun.com/gpu-mem",
        "a.io/b",
        "Kubernetes.io/x",
        f"GPU-{UUID}",
        "0:1",
    ),
]
SCALARS = (
    st.none() | st.booleans() | st.integers(-1, 9) | st.floats(allow_nan=False) | st.sampled_from(WORDS) | st.text()
)


def misspelt(key: str) -> st.SearchStrategy[str]:
    """Give ways to write `key` that are not right."""
    return st.sampled_from([key.lower(), key.upper(), key[:-1], f"{key}s", f"x{key}", f"{key}\n"])


some_keys = st.sampled_from(KEYS) | st.sampled_from(KEYS).flatmap(misspelt) | st.text()
any_data = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(some_keys, inner, max_size=6),
    max_leaves=40,
)


@st.composite
def like(draw: st.DrawFn, right: Any) -> Any:
    """Give data that is mostly like `right`, a settings tree, with anything in the place of any part of it."""
    if draw(st.integers(0, 19)) == 0:
        return draw(any_data)
    if isinstance(right, dict):
        kept = [key for key in right if draw(st.integers(0, 9))]
        return {draw(misspelt(key)) if draw(st.integers(0, 9)) == 0 else key: draw(like(right[key])) for key in kept}
    if isinstance(right, list):
        return [draw(like(item)) for item in right for _ in range(draw(st.integers(0, 2)))]
    return right


RIGHT = {
    "version": "v1",
    "flags": {"migStrategy": "mixed", "gdsEnabled": True, "plugin": {"deviceListStrategy": ["envvar", "cdi-cri"]}},
    "resources": {"gpus": [{"pattern": "*A100*", "name": "a100"}], "mig": [{"pattern": "*", "name": "small"}]},
    "sharing": {
        "timeSlicing": {
            "renameByDefault": True,
            "resources": [
                {"name": "gpu", "rename": "a.io/b", "devices": [0, "1"], "replicas": 2, "isolation": "hami-core"}
            ],
        },
        "mps": {
            "resources": [{"name": "a100", "replicas": 3}],
            "sizes": [{"devices": [2], "slices": [{"size": "10gb", "count": 2}, {"size": "20gb"}]}],
        },
        "memory": {
            "resources": [
                {
                    "name": "aliyun.com/gpu-mem",
                    "unit": "GiB",
                    "devices": 1,
                    "placement": "spread",
                    "isolation": "mps",
                    "compute": 50,
                    "frameworkHints": True,
                }
            ]
        },
    },
    "imex": {"channelIDs": []},
    "hamiCore": {"libraryDirectory": "/opt/hami"},
    "health": {
        "ignoredXids": [63, 94],
        "watchedXids": "all",
        "resetXids": [79],
        "goodProbes": 2,
        "probeSeconds": 0.5,
        "rescanSeconds": 60,
    },
}
values = st.just("mixed") | SCALARS | st.lists(st.sampled_from(WORDS), max_size=3)
overrides = st.lists(
    st.builds(
        Override,
        st.sampled_from(
            [
                ("flags", "migStrategy"),
                ("flags", "gdsEnabled"),
                ("flags", "plugin", "deviceListStrategy"),
                ("health", "ignoredXids"),
            ]
        ),
        values,
        st.just("--option"),
    ),
    max_size=2,
)


def check(content: bytes, given_overrides: list[Override]) -> Loaded:
    """Load `content`, and check what holds for every file."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "gpushare.yaml"
        file.write_bytes(content)
        loaded = load(file, given_overrides)
        lines = loaded.lines(loaded.problems)
        assert len(lines) >= bool(loaded.problems)
        assert (loaded.config is None) == bool(loaded.problems)
        assert all(line.startswith((f"{file}:", "--option:")) for line in lines)
        assert all(len(line.splitlines()) == 1 for line in lines)
        if loaded.config is not None:
            file.write_text(dump(loaded.config), encoding="utf-8")
            again = load(file)
            assert again.lines(again.problems) == []
            assert again.config == loaded.config
    return loaded


@given(st.binary())
def test_any_bytes_give_settings_or_problems(content: bytes) -> None:
    """Nothing that a file can hold raises."""
    check(content, [])


@given(any_data, overrides)
def test_any_data_gives_settings_or_problems(data: object, given_overrides: list[Override]) -> None:
    """There is a config exactly where nothing is wrong, and it loads again from its own text."""
    loaded = check(write(data).encode(), given_overrides)
    assert isinstance(data, dict) or loaded.config is None


@given(like(RIGHT), overrides)
def test_settings_gone_wrong_anywhere_give_settings_or_problems(data: object, given_overrides: list[Override]) -> None:
    """The same for files that are nearly right, with keys misspelt and values replaced."""
    check(write(data).encode(), given_overrides)

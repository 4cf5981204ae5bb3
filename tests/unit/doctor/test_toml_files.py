"""Tests that a mistake in a TOML file of the node is named by its line and its key, and how to correct it."""

import pytest

from gpushare_plugin.doctor.node.toml_files import TomlError, parsed_toml

SECRET = "hunter2"  # noqa: S105 - of nobody


@pytest.mark.parametrize(
    ("content", "said", "correction"),
    [
        (
            'imports = []\nversion = 2\nimports = ["x"]\n',
            "line 3: imports stands a second time, after line 1",
            "keep imports once in F (lines 1 and 3); of two lists, keep the entries of both",
        ),
        (
            "[p.'x.y'.z]\na = 1\n[p.\"x.y\".z]\nb = 2\n",
            'line 3: [p."x.y".z] stands a second time, after line 1',
            "keep [p.'x.y'.z] once in F, with",
        ),
        (
            "name = 1\n[t]\nname = 2\nname = 3\n",
            "line 4: name stands a second time, after line 3",
            "keep name once in F (lines 3 and 4)",
        ),
        ("version = 2\nversion = 3", "line 2: version stands a second time, after line 1", "(lines 1 and 2)"),
        ("name = 1\n[name]\nx = 2\n", "line 2: [name] stands a second time", "keep [name] once in F, with"),
        ("\nversion = \n", "line 2, version: Invalid value", "correct F in line 2, or just before"),
        (f"password = '{SECRET}\n", "line 1, password: ", "correct F in line 1, or just before"),
        (
            f'a = """\n{SECRET} = """\na = """\n{SECRET} = """\n',
            "line 4: Cannot overwrite",
            "correct F in line 4, or just before",
        ),
        (f"[{'[' * 9000}", "", "correct"),
        (f"x = {'[' * 9000}", "nested too deeply", "correct F"),
    ],
)
def test_a_mistake_is_named_by_line_and_key(content: str, said: str, correction: str) -> None:
    """What stands twice is named with both lines, and no value of the file is in the words."""
    with pytest.raises(TomlError) as caught:
        parsed_toml(content)
    assert said in str(caught.value)
    assert correction in caught.value.correction("F")
    assert SECRET not in f"{caught.value} {caught.value.correction('F')}"


def test_a_toml_text_is_read() -> None:
    """Tables with the same end, and keys of several tables, stand once each."""
    assert parsed_toml("[a.x]\nk = 1\n[b.x]\nk = 2\n") == {"a": {"x": {"k": 1}}, "b": {"x": {"k": 2}}}

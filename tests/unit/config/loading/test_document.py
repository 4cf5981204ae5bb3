"""The config file as a text: values, places, and texts that are no settings."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.base.errors import ConfigError
from gpushare_plugin.config.loading.content import LARGEST_FILE
from gpushare_plugin.config.loading.document import parse, read
from gpushare_plugin.config.loading.scalars import write
from gpushare_plugin.config.schema.places import Origin, SettingPlaces


def plain(text: str) -> object:
    """Read a text that must be right."""
    root, findings = parse(text, Origin("f"))
    assert root is not None
    assert findings == []
    return root.plain()


def faults(text: str) -> list[str]:
    """Read a text that must be wrong, and give its problems with their places."""
    _, findings = parse(text, Origin("f"))
    assert findings
    return [f"{finding.place}: {finding.message}" for finding in findings]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("text", "text"),
        ("'1'", "1"),
        ("1", 1),
        ("-7", -7),
        ("0x1F", 31),
        ("010", 8),
        ("0o17", 15),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("yes", True),
        ("Off", False),
        ("~", None),
        ("", None),
        ("1:0", "1:0"),
        ("2001-01-01", "2001-01-01"),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_mean_what_kubernetes_reads(text: str, value: object) -> None:
    """YAML 1.1 words are booleans as for NVIDIA's plugin; `1:0` is a MIG index and no number to the base of sixty."""
    assert plain(f"a: {text}") == {"a": value}


def test_json_is_read_also_with_tabs() -> None:
    """A JSON file is a config file."""
    assert plain('{\n\t"version": "v1",\n\t"a": [1, {"b": null}]\n}') == {"version": "v1", "a": [1, {"b": None}]}


def test_anchors_aliases_and_merges_are_written_out() -> None:
    """What is shared in the text is separate in the settings; a key of its own wins over a merged one."""
    text = "a: &x {k: 1, l: 2}\nb: *x\nc: {<<: *x, k: 3}\nd: {<<: [*x, {m: 4}]}"
    assert plain(text) == {
        "a": {"k": 1, "l": 2},
        "b": {"k": 1, "l": 2},
        "c": {"k": 3, "l": 2},
        "d": {"k": 1, "l": 2, "m": 4},
    }


def test_every_value_has_its_line_and_column() -> None:
    """A scalar is found where it stands, a section or list where its key stands, what is absent at its section."""
    root, _ = parse("a:\n  b:\n  - c: 1\n    d: [x, y]\n", Origin("f"))
    assert root is not None
    places = SettingPlaces(root)
    assert places.describe(("a", "b", 0, "c")) == "f:3:8: a.b[0].c"
    assert places.describe(("a", "b", 0, "d")) == "f:4:5: a.b[0].d"
    assert places.describe(("a", "b", 0, "d", 1)) == "f:4:12: a.b[0].d[1]"
    assert places.describe(("a", "b", 0)) == "f:3:5: a.b[0]"
    assert places.describe(("a", "b", 0, "e")) == "f:3:5: a.b[0].e"
    assert places.describe(("z", 0)) == "f:1:1: z[0]"


@pytest.mark.parametrize("text", ["", "\n\n", "# only this\n", "---\n", "null", "~ # nothing"])
def test_the_error_of_an_empty_file_shows_the_smallest_config(text: str) -> None:
    """NVIDIA's plugin takes an empty file for settings."""
    [fault] = faults(text)
    assert fault.startswith("f:1:1: the file is empty")
    assert '"version: v1"' in fault


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "version: v1\nflags:\n\tmigStrategy: none\n",
            (
                "found a tab; indent with spaces. If the indentation was lost, this config was meant "
                "(its values were not checked): {version: v1, flags:"
            ),
        ),
        ("version: v1\n\t- name:\n", "f:2:1: found a tab; indent with spaces"),
        ("a: b: c", 'f:1:5: found ":" where no value can begin; check the indentation'),
        ("a: 1\n b: 2", 'f:2:3: found ":" where no value can begin'),
        ("a:\n  - b\n c: 1", "f:3:2: the indentation does not fit the section begun on line 1"),
        ("a:\n  - b\n  c: 1", "f:3:3: the indentation does not fit the list begun on line 2"),
        ("a: [1, 2\nb: 3", 'f:2:2: the list that "[" opens on line 1 is not closed'),
        ("a: {b: 1", 'the section that "{" opens on line 1 is not closed'),
        ('a: "b', "text in quotes that began on line 1 does not end"),
        (r'a: "C:\path"', "a backslash that YAML cannot interpret; put the text in single quotes"),
        ("a: @b", "f:1:4: found a character that no value can begin with; put the text in quotes"),
        ("a: 1\nb\nc: 2", 'a key without ":"'),
        ("a: 1\n---\nb: 2", "f:2:1: a second document begins here"),
        ("- a\n- b", 'f:1:1: found a list; allowed: "version: v1"'),
        ("just text", 'f:1:1: found "just text"; allowed: "version: v1"'),
        ("a: *x", "f:1:4: the alias *x names no anchor above"),
        ("a: &x [*x]", "f:1:8: the alias *x refers to itself"),
        ("a: \x01", "f:1:4: found the character U+0001"),
        ("a: 1\nb: ü\x07", "f:2:5: found the character U+0007"),
        ("a: 1\nb: 2\na: 3", 'f:3:1: a: "a" is given twice, first on line 1'),
        ("? [a]\n: 1", 'f:1:3: "?": found a list as a key; allowed: plain text'),
        ("a: !!python/object:os.system x", "remove the tag"),
        ("a: !!set {b}", "remove the tag"),
        ("a: !!int x", "remove the tag"),
        ("<<: 5", '"<<" takes a section'),
    ],
)
def test_texts_that_are_no_settings_are_explained(text: str, fault: str) -> None:
    """Line, column and advice, without the words of a YAML library."""
    assert any(fault in found for found in faults(text)), faults(text)


def test_aliases_of_aliases_are_written_out_only_so_far() -> None:
    """The alias bomb does not go off."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    [fault] = faults("\n".join(lines))
    assert "more than 10,000 values" in fault


def test_merges_of_merges_are_written_out_only_so_far() -> None:
    """Neither a long chain of sections that merge each other nor one that doubles at each step does harm."""
    chain = ["a0: &a0 {k: 1}", *(f"a{n}: &a{n} {{<<: *a{n - 1}}}" for n in range(1, 2000))]
    doubling = ["a0: &a0 {}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 30))]
    assert "aliases nest more than 32 levels" in faults("\n".join(chain))[0]
    assert "more than 10,000 values" in faults("\n".join(doubling))[0]


def test_an_anchor_may_be_given_again() -> None:
    """As in any YAML: an alias names the last anchor above."""
    assert plain("a: &x 1\nb: &x 2\nc: *x") == {"a": 1, "b": 2, "c": 2}


def test_a_mistake_in_an_anchored_section_is_reported_once() -> None:
    """However many aliases lead to it."""
    assert len(faults("a: &x {k: 1, k: 2}\nb: *x\nc: {<<: *x}")) == 1


@pytest.mark.parametrize("text", ["[" * 200_000, "{a: " * 200_000, "- " * 200_000, "? " * 200_000])
def test_deep_nesting_does_not_end_the_process(text: str) -> None:
    """A recursive reader would exhaust the stack."""
    [fault] = faults(text)
    assert "nested more than 32 levels" in fault


def test_a_file_that_cannot_be_read_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    """Files that are absent, directories, or impossible raise at once: there are no settings to check."""
    (tmp_path / "directory").mkdir()
    with pytest.raises(ConfigError, match=r"absent\.yaml: there is no such file; check the path"):
        read(tmp_path / "absent.yaml")
    with pytest.raises(ConfigError, match=r"directory: this is a directory; give the path of the file in it"):
        read(tmp_path / "directory")
    with pytest.raises(ConfigError, match=r"cannot be read: Not a directory"):
        read(Path("/dev/null/file"))
    with pytest.raises(ConfigError, match="no file can have this name"):
        read(Path("a\0b"))


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    """A path that names a device does not fill the memory."""
    with pytest.raises(ConfigError, match="/dev/zero: cannot be read: not a regular file"):
        read(Path("/dev/zero"))


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    """Somebody names the wrong file; a byte too many is enough to know."""
    file = tmp_path / "f"
    file.write_bytes(b"#" * (LARGEST_FILE + 1))
    root, [finding] = read(file)
    assert root is None
    assert f"larger than {LARGEST_FILE:,} bytes" in finding.message


def test_a_file_in_another_encoding_is_reported_at_the_first_wrong_byte(tmp_path: Path) -> None:
    """A file saved in another encoding points at the first byte that is not UTF-8; a byte-order mark is fine."""
    file = tmp_path / "f"
    file.write_bytes(b"a: 1\nb: gr\xfc\xdfe")
    root, [finding] = read(file)
    assert root is None
    assert f"{finding.place}: {finding.message}" == f"{file}:2:6: found the byte 0xfc; save the file as UTF-8 text"
    file.write_bytes(b"\xef\xbb\xbfversion: v1")
    assert read(file)[1] == []


@given(st.text())
def test_any_text_gives_values_or_problems(text: str) -> None:
    """Reading never raises."""
    root, findings = parse(text, Origin("f"))
    assert root is not None or findings


@given(
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(),
            lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
            max_leaves=20,
        ),
        min_size=1,
    )
)
def test_written_settings_read_back(data: dict[str, object]) -> None:
    """Text that looks like something else is quoted."""
    assert plain(write(data)) == data

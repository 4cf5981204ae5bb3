"""Configs inside manifests and Helm values: which are found, and that their mistakes stand where the file has them."""

import json
from textwrap import indent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_plugin.config.loading.load import nothing_at, validated
from gpushare_plugin.config.loading.manifests import FoundConfig, embedded_configs, whole_config
from gpushare_plugin.config.loading.scalars import write
from gpushare_plugin.config.schema.places import Finding
from tests.unit.config.loading.test_properties import RIGHT, like

GOOD = "version: v1\nsharing:\n  timeSlicing:\n    resources:\n    - {name: gpu, replicas: 2}\n"
BAD = GOOD.replace("timeSlicing", "timeslicing")


def findings(found: FoundConfig) -> tuple[Finding, ...]:
    """Return what is wrong with a config that was found."""
    return validated(found.root or nothing_at(found.source), found.findings).problems


def lines(text: str) -> list[str]:
    """Return what is wrong with the configs in a text, as it is printed."""
    return [f"{each.place}: {each.message}" for found in embedded_configs(text, "f") for each in findings(found)]


def configmap(**data: str) -> str:
    """Write a ConfigMap as people do."""
    blocks = "".join(f"  {name}: |\n{indent(text, '    ')}" for name, text in data.items())
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: configs\ndata:\n{blocks}"


def test_every_key_of_a_configmap_is_a_config() -> None:
    """Each is checked by itself, and a mistake has its line in the manifest."""
    text = configmap(good=GOOD, bad=BAD)
    assert [str(found) for found in embedded_configs(text, "f")] == ["f (data.good)", "f (data.bad)"]
    [line] = lines(text)
    assert line.startswith('f:15:7: data.bad.sharing.timeslicing: unknown key "timeslicing"')
    assert text.split("\n")[14][6:] == "timeslicing:"


def test_a_plain_config_is_no_manifest() -> None:
    """A plain config is left to the loader."""
    assert embedded_configs(GOOD, "f") == []


def test_configs_in_all_documents_of_a_stream_are_read() -> None:
    """Other manifests beside a ConfigMap, and other ConfigMaps, are passed over."""
    other = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\n"
    stream = "---\n".join([other, configmap(key="text\n"), configmap(bad=BAD), other])
    assert lines(stream)[0].startswith("f:21:7: data.bad.sharing.timeslicing: ")
    assert len(embedded_configs(stream, "f")) == 1


def test_a_single_configmap_is_checked_whatever_it_holds() -> None:
    """A config so wrong that it does not look like one is not passed over."""
    [line] = lines(configmap(default="sharin: {}\n"))
    assert line.startswith('f:7:5: data.default.sharin: unknown key "sharin"; did you mean "sharing"?')


def test_configmaps_with_the_same_key_are_told_apart() -> None:
    """By namespace and name, or by the document where they have none; a single one needs no name."""
    one, two = (
        configmap(default=GOOD).replace("name: configs", f"name: {name}\n  namespace: gpus") for name in ("one", "two")
    )
    nameless = configmap(default=GOOD).replace("metadata:\n  name: configs\n", "")
    assert [str(found) for found in embedded_configs(f"{one}---\n{two}---\n{nameless}", "f")] == [
        "f (gpus/one: data.default)",
        "f (gpus/two: data.default)",
        "f (document 3: data.default)",
    ]


def test_binary_data_is_no_config() -> None:
    """`kubectl create configmap` puts there what is no UTF-8 text, and the daemon gets it as a file."""
    first, *rest = lines(f"{configmap(good=GOOD)}binaryData:\n  bad: //4=\n")
    assert rest == []
    assert first.startswith("f:13:3: binaryData.bad: found binary data; save the config as UTF-8 text")


@pytest.mark.parametrize("kind", ["List", "ConfigMapList"])
def test_configmaps_in_a_list_of_objects_are_read(kind: str) -> None:
    """As kubectl prints several objects."""
    item = "".join(f"  {line}\n" for line in configmap(bad=BAD).splitlines())
    if kind == "ConfigMapList":
        item = item.replace("  apiVersion: v1\n  kind: ConfigMap\n", "")
    text = f"apiVersion: v1\nkind: {kind}\nitems:\n- {item.lstrip()}"
    [line] = lines(text)
    place = int(line.split(":")[1])
    assert text.split("\n")[place - 1].strip() == "timeslicing:"
    assert "items[0].data.bad.sharing.timeslicing: " in line


@pytest.mark.parametrize(
    "above", [("config", "map"), ("gpushare", "config", "map"), ("devicePlugin", "config", "data")]
)
@pytest.mark.parametrize("as_text", [True, False])
def test_configs_in_helm_values_are_found(above: tuple[str, ...], *, as_text: bool) -> None:
    """Values of the charts, as such or as those of a subchart, and of the GPU operator; as text or as YAML."""
    text = "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(above)) + "      default:"
    text += (" |-\n" if as_text else "\n") + indent(BAD, "        ")
    found = lines(text)
    if not as_text and above[0] == "devicePlugin":
        assert found[0].endswith('found a section; expected a config as text: write "default: |"')
        return
    line = len(above) + 4
    assert found[0].startswith(f'f:{line}:11: {".".join(above)}.default.sharing.timeslicing: unknown key "timeslicing"')


def test_a_config_that_is_no_text_is_reported() -> None:
    """A ConfigMap holds text only; the message says how a block of text begins."""
    text = f"apiVersion: v1\nkind: ConfigMap\ndata:\n  default:\n{indent(GOOD, '    ')}"
    assert lines(text) == ['f:4:3: data.default: found a section; expected a config as text: write "default: |"']


def test_a_text_in_quotes_has_one_place() -> None:
    """As in JSON: the path leads to the value, and the line inside the text is in the message where there is none."""
    text = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": BAD, "b": "version: v1\n\t- name:\n"}})
    first, second = lines(text)
    column = text.index('"version') + 1
    assert first.startswith(f"f:1:{column}: data.a.sharing.timeslicing: unknown key")
    assert second.endswith(": data.b: line 2 of this text: found a tab; indent with spaces")


def test_syntax_errors_have_their_place_in_the_manifest() -> None:
    """The parser's own places are those of the manifest, too, and so are the lines that messages name."""
    [line] = lines(configmap(broken="sharing:\n  memory: {resources: [\n  - x\n"))
    assert line.split(":")[1] == "9"
    [line] = lines(configmap(twice="version: v1\nflags: {}\nversion: v1\n"))
    assert line == 'f:9:5: data.twice.version: "version" is given twice, first on line 7; remove one'


def test_a_key_given_twice_in_the_manifest_is_reported() -> None:
    """Of two configs of one name, Kubernetes would keep one."""
    found = lines(configmap(default=GOOD) + f"  default: |\n{indent(GOOD, '    ')}")
    assert any('"default" is given twice' in line for line in found)


def test_a_broken_document_after_a_configmap_is_reported() -> None:
    """A document behind a ConfigMap that is no YAML is a mistake of the file."""
    assert any(line.startswith("f:") for line in lines(configmap(default=GOOD) + "---\na: [\n"))


@given(like(RIGHT), st.integers(0, 9), st.integers(1, 6), st.sampled_from(["|", "|-", "| # comment", "|+"]))
def test_a_place_in_a_manifest_is_that_of_the_plain_file_moved_down_and_right(
    data: object, above: int, indentation: int, style: str
) -> None:
    """Whatever is wrong with a config stands at the same text inside a manifest."""
    text = write(data)
    header = "".join(f"# line {number}\n" for number in range(above))
    header += f"apiVersion: v1\nkind: ConfigMap\ndata:\n  default: {style}\n"
    [inside] = embedded_configs(header + indent(text, "  " + " " * indentation), "f")
    alone, moved = findings(whole_config(text, "f")), findings(inside)
    assert [(each.place.line + above + 4, each.place.column + 2 + indentation) for each in alone] == [
        (each.place.line, each.place.column) for each in moved
    ]
    assert [each.place.path for each in moved] == [("data", "default", *each.place.path) for each in alone]

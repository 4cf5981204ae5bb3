"""What people are asked for who report a defect, a wish or a vulnerability."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare_plugin.cli.main import COMMANDS, commands

ROOT = Path(__file__).parents[2]
FORMS = ROOT / ".github/ISSUE_TEMPLATE"
TEXTS = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *FORMS.iterdir()]


def fields(form: str) -> dict[str, dict[str, Any]]:
    """Return the fields of a form that people fill in, by their names."""
    body = yaml.safe_load((FORMS / form).read_text())["body"]
    return {field["id"]: field for field in body if field["type"] != "markdown"}


def test_a_report_of_a_defect_has_what_is_needed_to_understand_it() -> None:
    """The form insists on what happened, the version, the state of the node, the driver and Kubernetes."""
    required = {name for name, field in fields("defect.yaml").items() if field.get("validations", {}).get("required")}
    assert required == {"happened", "version", "list", "driver", "kubernetes"}
    said = "".join(field["attributes"].get("description", "") for field in fields("defect.yaml").values())
    for command in ("gpushare version", "gpushare list -o json", "nvidia-smi", "kubectl version"):
        assert command in said
        assert command in (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_commands_that_people_are_asked_to_run_exist(text: Path) -> None:
    """Each command of gpushare that these texts show as code is one, with the options that are named."""
    for name, rest in re.findall(r"\bgpushare ([a-z-]+)((?: -[-\w]+)*)", code(text.read_text())):
        assert name in COMMANDS, f"{text.name}: gpushare {name}"
        options = {option for each in commands.load(name).params for option in each.opts}
        assert [option for option in rest.split() if option not in options] == [], f"{text.name}: gpushare {name}{rest}"


def code(text: str) -> str:
    """Return what a text shows as code: blocks, and what is between backticks."""
    found = re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`", text, re.DOTALL)
    return "\n".join(block or inline for block, inline in found)


def test_what_the_owner_has_to_fill_in_is_listed() -> None:
    """The page for maintainers names the address that is missing, as long as it is missing."""
    missing = "SECURITY_CONTACT" in (ROOT / "SECURITY.md").read_text()
    assert missing == ("`SECURITY_CONTACT`" in (ROOT / "docs/releasing.md").read_text())

"""Tests of `gpushare_plugin.cli.main`: the lazy group."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gpushare_plugin import __main__
from gpushare_plugin.cli import commands as package
from gpushare_plugin.cli import kubectl_complete
from gpushare_plugin.cli.commands.cluster import partition
from gpushare_plugin.cli.main import COMMANDS, FOLDERS, SECTIONS, commands

WHAT_WAS_IMPORTED = """
import sys
from gpushare_plugin.cli.main import main
sys.argv = ["gpushare", *sys.argv[1:]]
try:
    main(lambda: None)
except SystemExit:
    sys.stderr.write("\\n".join(sys.modules))
"""


def imported(*arguments: str) -> set[str]:
    """Return the modules that a process has imported that ran the command line."""
    command = (sys.executable, "-c", WHAT_WAS_IMPORTED, *arguments)
    return set(subprocess.run(command, capture_output=True, check=True, text=True).stderr.splitlines())


@pytest.mark.parametrize("arguments", [("version",), ("--version",), ("--help",), ("run", "--help")], ids=" ".join)
def test_commands_that_do_not_run_are_not_imported(arguments: tuple[str, ...]) -> None:
    """The version and the help do not wait for what the daemon needs."""
    modules = imported(*arguments)
    ours = {name.rpartition(".")[2] for name in modules if name.startswith(f"{package.__name__}.")}
    assert ours - FOLDERS.keys() == {argument for argument in arguments if argument in COMMANDS}
    libraries = {"asyncio", "aiohttp", "grpc", "kubernetes", "pydantic", "pynvml", "rich", "structlog"}
    assert (modules & libraries == set()) is (arguments[0] != "run")


@pytest.mark.parametrize("command", ["mps", "cleanup"])
def test_commands_that_do_not_talk_to_the_kubelet_do_not_import_grpc(command: str) -> None:
    """A command imports what its work needs, not what another one does."""
    assert "grpc" not in imported(command, "--help")


def test_every_module_is_a_command_of_its_name() -> None:
    """None is left out of the table, and none is called otherwise than its module."""
    (folder,) = map(Path, package.__path__)
    modules = {file.stem for file in folder.rglob("*.py")} - {"__init__"}
    assert {name.replace("-", "_") for name in COMMANDS} == modules
    assert {name: commands.load(name).name for name in COMMANDS} == {name: name for name in COMMANDS}


def test_commands_that_run_until_a_signal_are_daemons_from_the_start() -> None:
    """SIGHUP in the first moments ends none of those whose help says that SIGTERM does."""
    daemons = {name for (name,) in __main__._DAEMONS}  # noqa: SLF001 - what matters is over before anybody could ask
    meant = {name for name, text in COMMANDS.items() if "until SIGTERM" in text}
    assert daemons ^ meant == set(), "_DAEMONS in gpushare_plugin/__main__.py, or the short help"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_short_help_in_the_table_is_that_of_the_command(name: str) -> None:
    """The group says of a command, without importing it, what the command says of itself."""
    assert commands.load(name).get_short_help_str(limit=120) == COMMANDS[name]


def test_the_list_of_commands_is_not_cut_in_80_columns() -> None:
    """Each command has its whole line."""
    done = CliRunner().invoke(commands, ["--help"], terminal_width=80)
    lines = [line.split(maxsplit=1) for line in done.output.splitlines()]
    shown = [line for line in lines if line and line[0] in COMMANDS]
    assert shown == [[name, COMMANDS[name]] for names in SECTIONS.values() for name in names]
    assert sorted(name for name, _ in shown) == sorted(COMMANDS)


def test_commands_and_their_options_are_completed() -> None:
    """A shell is told the commands with their short help, and the options of one that is typed already."""
    complete = ShellComplete(commands, {}, "gpushare", "_GPUSHARE_COMPLETE")
    assert [(each.value, each.help) for each in complete.get_completions([], "ch")] == [
        ("check-config", COMMANDS["check-config"])
    ]
    assert [each.value for each in complete.get_completions(["run"], "--config-")] == [
        "--config-file",
        "--config-directory",
    ]


def test_kubectl_is_told_completions_in_its_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A completion per line, its description after a tab, and whether files may complete the word as well."""
    for words, told in (
        (["ch"], f"check-config\t{COMMANDS['check-config']}\n:4\n"),
        (["run", "--config-file", ""], ":0\n"),
        (["explain", "--kubeconfig", "/nowhere", "p"], ":4\n"),
    ):
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-gpushare", *words])
        kubectl_complete.main()
        assert capsys.readouterr() == (told, "")


def test_a_misspelled_command_is_told_the_nearest() -> None:
    """The names are known without any command being imported."""
    done = CliRunner().invoke(commands, ["lst"])
    assert (done.exit_code, "No such command 'lst'. Did you mean 'list'?" in done.output) == (2, True)


def test_the_caller_is_told_once_that_the_command_is_imported() -> None:
    """Where no command runs, nothing is told."""
    told: list[str] = []
    for arguments in (["--help"], ["--version"], ["no-such-command"], ["version"]):
        CliRunner().invoke(commands, arguments, obj=lambda arguments=arguments: told.append(arguments[0]))
    assert told == ["version"]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_is_whole_in_80_columns(name: str) -> None:
    """No line is wider than the terminal, and no text of an option is cut."""
    done = CliRunner().invoke(commands, [name, "--help"], terminal_width=80)
    assert [line for line in done.output.splitlines() if len(line) > 80] == []
    text = "".join(done.output.split())
    for option in commands.load(name).params:
        if isinstance(option, click.Option):
            assert "".join(f"{option.help}".split()) in text


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_are_spelled_as_on_the_command_line(name: str) -> None:
    """`true` and `false`, as the option takes them, not as Python writes them."""
    output = CliRunner().invoke(commands, [name, "--help"], terminal_width=200).output
    assert not re.search(r"\b(True|False|None)\b", output)
    if name in {"mps", "run"}:
        assert re.search(r"default: (true|false)\]", output)


def test_cleanup_says_which_nodes_are_cleaned() -> None:
    """The name of a Node means something else there than for a daemon."""
    output = " ".join(CliRunner().invoke(commands, ["cleanup", "--help"], terminal_width=80).output.split())
    assert "--node-name NAME The only Node to clean; Leases stay. Default: all Nodes." in output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_completion_is_printed(shell: str) -> None:
    """As `kubectl completion` has it: one argument, the shell."""
    done = CliRunner().invoke(commands, ["completion", shell], prog_name="gpushare")
    assert (done.exit_code, f"_GPUSHARE_COMPLETE={shell}_complete" in done.output) == (0, True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_with_the_script(tmp_path: Path) -> None:
    """The script and the command understand each other."""
    program = tmp_path / "gpushare"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpushare_plugin "$@"\n')
    program.chmod(0o755)
    script = """
source <(gpushare completion bash)
COMP_WORDS=(gpushare run --config-d) COMP_CWORD=2
_gpushare_completion gpushare
echo "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "-c", script],  # noqa: S607 - as a person does
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "--config-directory\n"


def test_a_patience_that_is_no_number_is_refused() -> None:
    """`nan` is in no range, and no time would ever have passed; the variable is judged like the option."""
    for arguments, variables in ((["--patience", "nan"], {}), ([], {"PATIENCE": "nan"})):
        done = CliRunner().invoke(partition.command, arguments, env=variables)
        assert done.exit_code == 2
        assert "found 'nan', a number of seconds expected" in done.output

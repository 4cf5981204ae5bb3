"""Tests of what is said of a container runtime's configuration: which file to edit, and that remedies fit together."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gpushare_plugin.doctor.node.diagnosis import Diagnosis
from gpushare_plugin.doctor.node.host import HostRoot
from gpushare_plugin.doctor.node.needs import ConfigNeeds
from gpushare_plugin.doctor.subjects.runtimes.judgement import (
    OperatorState,
    judge_handlers,
    judge_runtime,
    read_runtime,
)
from gpushare_plugin.testing.hosts import HostDescription, built
from tests.unit.doctor.examining import CDI, ENVVAR

MAIN, DROP_INS = "/etc/containerd/config.toml", "/etc/containerd/conf.d"
SITE, NVIDIA = f"{DROP_INS}/50-site.toml", f"{DROP_INS}/99-nvidia.toml"
OLD, NEWEST = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
IMPORTS = f'imports = ["{DROP_INS}/*.toml"]\n'
PROGRAM = "/usr/bin/nvidia-container-runtime"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd"
MADE, TEMPLATE = f"{K3S}/config.toml", f"{K3S}/config-v3.toml.tmpl"
BASE = '{{ template "base" . }}\n'


def section(name: str, settings: str = "") -> str:
    """Return a section of the CRI plugin with NVIDIA's handler."""
    handler = f"[plugins.'{name}'.containerd.runtimes.nvidia.options]\nBinaryName = '{PROGRAM}'\n"
    return f"[plugins.'{name}']\n{settings}\n{handler}"


def default(name: str, handler: str = "nvidia") -> str:
    """Return the setting of the default handler in a section of the CRI plugin."""
    return f"[plugins.'{name}'.containerd]\ndefault_runtime_name = '{handler}'\n"


def node(package: str = "", **programs: str) -> HostDescription:
    """Return a node with a package of containerd, if any, and with NVIDIA's runtime."""
    versions = {"containerd": package, "nvidia-container-toolkit": programs.get("toolkit", "1.17.8")}
    status = "\n".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}-1\n"
        for name, version in versions.items()
        if version
    )
    return HostDescription({"/var/lib/dpkg/status": status, PROGRAM: ""})


def lines(host: HostDescription, folder: Path, needs: ConfigNeeds = ENVVAR) -> list[Diagnosis]:
    """Return what is said of the container runtime of a node."""
    with built(host, folder):
        root = HostRoot(folder)
        runtime = read_runtime(root)
        assert runtime is not None
        return [*judge_runtime(runtime), *judge_handlers(runtime, root, needs, OperatorState())]


UNIT = "/etc/systemd/system/k3s.service"


def wrong(host: HostDescription, folder: Path, needs: ConfigNeeds = ENVVAR) -> list[Diagnosis]:
    """Return the lines that are wrong."""
    return [line for line in lines(host, folder, needs) if line.judgement == "wrong"]


def test_a_table_that_a_distribution_writes_itself_is_removed_from_the_template(tmp_path: Path) -> None:
    """K3s writes the handler of the template that begins with its own content; the made file is nobody's to edit."""
    handler = section(NEWEST)
    twice = HostDescription({TEMPLATE: BASE + handler, MADE: f"version = 3\n{handler}{handler}"})
    (line,) = wrong(node() + twice, tmp_path / "twice")
    name = f"[plugins.'{NEWEST}']"
    assert f"{MADE}: line 6: {name} stands a second time, after line 2" in line.found
    remedy = line.remedy or ""
    options = f"[plugins.'{NEWEST}'.containerd.runtimes.nvidia.options]"
    assert remedy.startswith(
        f"remove each of {name} and {options}, which K3s writes itself for `{BASE.strip()}`, from "
    )
    assert f" from {TEMPLATE} (of which each start of K3s makes {MADE}), with the settings directly below" in remedy
    mended = HostDescription({TEMPLATE: BASE, MADE: f"version = 3\n{handler}"})
    assert wrong(node() + mended, tmp_path / "mended") == []


@pytest.mark.parametrize(
    ("made", "template", "remedy"),
    [
        ("version = 3\nversion = 3\n", "version = 3\nversion = 3\n", f"keep version once in {TEMPLATE} (of which each"),
        ("version = \n", "version = \n", f"correct {TEMPLATE} (of which each start of K3s makes {MADE}), and run"),
        ("version = \n", None, f"remove {MADE}, which each start of K3s makes anew, and run `systemctl restart k3s`"),
        (
            'version = 3\ndisabled_plugins = ["cri"]\n',
            'version = 3\ndisabled_plugins = ["cri"]\n',
            f"remove cri from disabled_plugins in {TEMPLATE} (of which each start of K3s makes {MADE}) and run",
        ),
        (
            f"version = 3\n{default(NEWEST, 'nvida')}",
            BASE,
            "set default-runtime in /etc/rancher/k3s/config.yaml to runc, and run `systemctl restart k3s`",
        ),
        (
            f"version = 3\n{default(NEWEST, 'nvida')}",
            f"{BASE}{default(NEWEST, 'nvida')}",
            f"set default_runtime_name in {TEMPLATE} (of which each start of K3s makes {MADE}) to runc, and run",
        ),
        (
            f'version = 3\nimports = ["{K3S}/config-v3.toml.d/*.toml"]\n{default(NEWEST, "nvida")}',
            None,
            f"in a new file {K3S}/config-v3.toml.d/*.toml (which {MADE} imports) to ",
        ),
        (
            f'version = 2\nimports = ["{K3S}/config.toml.d/*.toml"]\n{default(OLD, "nvida")}',
            None,
            "set default-runtime in /etc/rancher/k3s/config.yaml to runc, and run `systemctl restart k3s`",
        ),
    ],
    ids=["twice", "no TOML", "no template", "plugin off", "default", "template", "drop-in", "version 2"],
)
def test_a_file_that_a_distribution_makes_is_never_to_be_edited(
    *, made: str, template: str | None, remedy: str, tmp_path: Path
) -> None:
    """Each start makes the file anew, so the remedy names the template, or a file that is imported."""
    files = {MADE: made} | ({TEMPLATE: template} if template else {})
    assert remedy in (wrong(node() + HostDescription(files), tmp_path)[0].remedy or "")


def test_settings_that_containerd_1_does_not_take_are_named(tmp_path: Path) -> None:
    """The handler works, so the line is right; the settings of the earlier file are named, with what brings them."""
    settings = f"sandbox_image = 'p'\n[plugins.'{OLD}'.registry.configs.'r.example.com'.auth]\npassword = 'secret'\n"
    runc = f"[plugins.'{OLD}'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
    host = node("1.7.28") + HostDescription(
        {MAIN: f"version = 2\n{IMPORTS}{section(OLD, settings)}{runc}", NVIDIA: f"version = 2\n{section(OLD)}"}
    )
    runtime, handler, _ = lines(host, tmp_path / "lost")
    assert (runtime.judgement, handler.judgement) == ("right", "right")
    assert f"Of {MAIN}, no setting of [plugins.'{OLD}'] has an effect, since containerd 1.x takes" in runtime.found
    lost = "sandbox_image, registry, containerd.runtimes.runc.options.SystemdCgroup"
    assert f"from {NVIDIA}, which lacks {lost}: to have these settings, write them into" in runtime.found
    assert "secret" not in runtime.found
    assert "example.com" not in runtime.found
    runtime, *_ = lines(host.edited(NVIDIA, "/usr/bin", "/usr/local/nvidia/toolkit"), tmp_path / "of the operator")
    assert f"of {NVIDIA}, which NVIDIA's operator writes itself, into a new file that is read after" in runtime.found
    runtime, *_ = lines(host.edited("/var/lib/dpkg/status", "1.7.28", "2.1.4"), tmp_path / "merged")
    assert "no setting" not in runtime.found


def test_an_import_makes_containerd_1_lose_no_setting(tmp_path: Path) -> None:
    """Of several drop-in files with the section only the last counts, so their settings come together first."""
    files = HostDescription(
        {
            MAIN: "version = 2\n",
            SITE: f"version = 2\n[plugins.'{OLD}']\na = 1\n",
            NVIDIA: f"version = 2\n{section(OLD)}",
        }
    )
    first, *_ = wrong(node("1.7.28") + files, tmp_path / "1")
    assert f"bring all settings that {SITE} and {NVIDIA} have in [plugins.'{OLD}'] into one" in (first.remedy or "")
    first, *_ = wrong(node("2.1.4") + files, tmp_path / "2")
    assert (first.remedy or "").startswith(f"add `{IMPORTS.strip()}`")
    without = HostDescription({MAIN: "version = 2\n", SITE: f"version = 2\n[plugins.'{OLD}']\na = 1\n"})
    (line,) = wrong(node("2.1.4") + without, tmp_path / "of no GPU")
    assert line.subject == "NVIDIA's runtime"


@pytest.mark.parametrize("package", ["", "1.7.28"])
def test_a_handler_is_written_into_the_file_that_has_the_section(package: str, tmp_path: Path) -> None:
    """Instead of an import, with which containerd 1.x, or one of unknown version, would drop the settings there."""
    files = {MAIN: f"version = 2\n[plugins.'{OLD}']\na = 1\n", NVIDIA: f"version = 2\n{section(OLD)}"}
    first, *_ = wrong(node(package) + HostDescription(files), tmp_path)
    assert f"write the handlers of {NVIDIA} into [plugins.'{OLD}'] of {MAIN} instead" in (first.remedy or "")


@pytest.mark.parametrize("package", ["", "1.7.28"])
@pytest.mark.parametrize(("toolkit", "by_hand"), [("1.17.8", False), ("1.18.1", True)])
def test_nvidias_command_is_named_where_it_makes_containerd_1_lose_nothing(
    *, package: str, toolkit: str, by_hand: bool, tmp_path: Path
) -> None:
    """From toolkit 1.18 on, the command writes a drop-in file, for which containerd 1.x drops its own section."""
    files = HostDescription({MAIN: f"version = 2\n[plugins.'{OLD}']\nsandbox_image = 'p'\n"})
    (line,) = wrong(node(package, toolkit=toolkit) + files, tmp_path)
    assert (line.remedy or "").startswith("write a table" if by_hand else "run `nvidia-ctk runtime configure")


@pytest.mark.parametrize(
    "files",
    [
        {MAIN: f"version = 3\n{default(NEWEST)}", NVIDIA: f"version = 3\n{section(NEWEST)}"},
        {MAIN: f"version = 3\n{IMPORTS}{default(NEWEST)}", NVIDIA: f"version = 3\n{section(OLD)}"},
    ],
    ids=["not imported", "misplaced"],
)
def test_a_default_handler_that_another_remedy_brings_stays(files: dict[str, str], tmp_path: Path) -> None:
    """Whoever has the handler take effect, as another remedy says, has not to name another default handler."""
    found = {line.found: line.remedy or "" for line in wrong(node("2.1.4") + HostDescription(files), tmp_path)}
    (remedy,) = [remedy for said, remedy in found.items() if "there is no such handler" in said]
    assert remedy.startswith(f"do what is said of {NVIDIA}, which has the handler nvidia: default_runtime_name in")


def test_a_default_handler_is_judged_only_where_every_file_can_be_read(tmp_path: Path) -> None:
    """The handler may be in the file that is to be corrected."""
    files = {MAIN: f"version = 3\n{IMPORTS}{default(NEWEST)}", NVIDIA: f"version = 3\nversion = 3\n{section(NEWEST)}"}
    (line,) = wrong(node("2.1.4") + HostDescription(files), tmp_path)
    assert f"keep version once in {NVIDIA}" in (line.remedy or "")


def test_a_handler_that_is_to_be_removed_is_no_default_handler(tmp_path: Path) -> None:
    """The remedy that removes the default handler names another; no remedy names a handler without its program."""
    host = node("2.1.4").without(PROGRAM)
    (line,) = wrong(
        host + HostDescription({MAIN: f"version = 3\n{section(NEWEST)}{default(NEWEST)}"}), tmp_path / "default", CDI
    )
    assert f"(b) remove the handler from {MAIN}, set default_runtime_name in {MAIN} to runc, and run `systemctl" in (
        line.remedy or ""
    )
    typo = HostDescription({MAIN: f"version = 3\n{section(NEWEST)}{default(NEWEST, 'nvida')}"})
    first, _ = wrong(host + typo, tmp_path / "unknown", CDI)
    assert f"set default_runtime_name in {MAIN} to runc, and run" in (first.remedy or "")


@pytest.mark.parametrize(
    ("package", "main", "drop_in", "said"),
    [
        ("2.3.1", 3, 4, f"does not start with {NVIDIA} (version 4), because an imported file may not have a higher"),
        ("2.3.1", 5, 4, f"does not start with {MAIN} (version 5): expected version 4 or an older one"),
        ("2.2.4", 2, 3, f"nvidia in [plugins.'{OLD}'] of {MAIN}, which {NVIDIA} makes one of version 3"),
        ("2.3.1", 4, 3, ""),
        ("2.2.4", 3, 2, ""),
        ("2.5.0", 6, 6, ""),
    ],
)
def test_the_versions_of_two_files_fit_together(
    *, package: str, main: int, drop_in: int, said: str, tmp_path: Path
) -> None:
    """2.3 refuses an imported file of a higher version; before, the version read last decides on all files."""
    in_main = section(OLD) if main < 3 else ""
    files = {MAIN: f"version = {main}\n{IMPORTS}{in_main}", NVIDIA: f"version = {drop_in}\n"}
    if not in_main:
        files[NVIDIA] += section(NEWEST if drop_in > 2 else OLD)
    assert [said in line.found for line in wrong(node(package) + HostDescription(files), tmp_path)] == (
        [True] if said else []
    )


def test_an_import_is_not_of_a_higher_version(tmp_path: Path) -> None:
    """A drop-in file that 2.3 would refuse is written anew before containerd imports that file."""
    files = HostDescription({MAIN: "version = 2\n", NVIDIA: f"version = 3\n{section(NEWEST)}"})
    first, *_ = wrong(node("2.3.1") + files, tmp_path / "higher")
    assert (first.remedy or "").startswith(f"write {NVIDIA} with version = 2 and the sections of that version, such as")
    newer = HostDescription({MAIN: "version = 2\n", NVIDIA: f"version = 4\n{section(NEWEST)}"})
    first, *_ = wrong(node("2.1.4") + newer, tmp_path / "too new")
    assert (first.remedy or "").startswith(f"write {NVIDIA} with version = 3 and the sections of that version, such as")


def test_without_a_version_nothing_is_judged_by_that(tmp_path: Path) -> None:
    """Whether the old section counts in a file of version 3 depends on the version, which no package shows."""
    runtime, handler, _ = lines(node() + HostDescription({MAIN: "version = 2\n"}), tmp_path / "unknown")
    assert runtime.found == f"containerd, version unknown, which reads {MAIN}"
    assert handler.subject == "NVIDIA's runtime"
    _, handler, _ = lines(node() + HostDescription({MAIN: f"version = 3\n{section(OLD)}"}), tmp_path / "old section")
    assert handler.judgement == "notLookedAt"
    assert "the version is not known here. To be sure, move the handler there" in handler.found


def test_cdi_is_turned_on_before_gpus_are_given_by_cdi(tmp_path: Path) -> None:
    """The way that needs CDI in the container runtime begins with that where CDI is off."""
    enables = f"set `enable_cdi = true` in [plugins.'{OLD}'] of {MAIN}"
    for version, first in (("1.7.28", enables), ("2.1.4", "give GPUs")):
        folder = tmp_path / version
        with built(node(version) + HostDescription({MAIN: "version = 2\n"}), folder):
            root = HostRoot(folder)
            runtime = read_runtime(root)
            assert runtime is not None
            (line, _) = judge_handlers(runtime, root, ENVVAR, OperatorState(installs_toolkit=True))
        assert f"the best here first. (a) {first}" in (line.remedy or "")


def test_k3s_is_told_once_to_install_the_toolkit(tmp_path: Path) -> None:
    """K3s finds the program that a package installs, so nothing is to be configured."""
    made = HostDescription({MADE: f"version = 3\n{section(NEWEST)}"})
    (line,) = wrong(node().without(PROGRAM) + made, tmp_path)
    assert line.remedy == (
        "install NVIDIA's container toolkit and run `systemctl restart k3s` (on a node without control plane "
        "`systemctl restart k3s-agent`), whose start finds the runtime in /usr/bin"
    )


def test_k3s_needs_a_start_only_where_the_toolkit_is_there(tmp_path: Path) -> None:
    """A start finds the program; a template without the content of K3s has to have the handler itself."""
    made = HostDescription({MADE: "version = 3\n"})
    (line,) = wrong(node() + made, tmp_path / "start")
    assert (line.remedy or "").startswith("run `systemctl restart k3s` (on")
    (line,) = wrong(node() + made + HostDescription({TEMPLATE: "version = 3\n"}), tmp_path / "template")
    assert (line.remedy or "").startswith(f"write a table for the handler nvidia like that of runc into {TEMPLATE}, ")


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"/etc/rancher/k3s/config.yaml": "data-dir: /data/k3s\n"}, "/data/k3s"),
        ({"/etc/rancher/k3s/config.yaml.d/9.yaml": "data-dir: /data/k3s/\n"}, "/data/k3s"),
        ({UNIT: "ExecStart=/usr/local/bin/k3s \\\n    server \\\n\t'--data-dir' \\\n\t'/data/k3s' \\\n"}, "/data/k3s"),
        ({UNIT: "ExecStart=/usr/local/bin/k3s server -d /data/k3s\n"}, "/data/k3s"),
        ({f"{UNIT}.env": "K3S_DATA_DIR=/data/k3s\n"}, "/data/k3s"),
        (
            {
                UNIT: "ExecStart=/usr/local/bin/k3s server --data-dir=/data/k3s\n",
                "/etc/rancher/k3s/config.yaml": "data-dir: /other\n",
            },
            "/data/k3s",
        ),
        ({UNIT: "#ExecStart=/usr/local/bin/k3s server --data-dir /data/k3s\n"}, "/var/lib/rancher/k3s"),
    ],
)
def test_k3s_with_another_directory_is_found(*, given: Mapping[str, str], where: str, tmp_path: Path) -> None:
    """The configuration of its containerd is below --data-dir; the command counts more than the configuration."""
    made = f"{where}/agent/etc/containerd/config.toml"
    host = node() + HostDescription({made: f"version = 3\n{section(NEWEST)}", **given})
    runtime, *_ = lines(host, tmp_path)
    assert made in runtime.found

"""Commands that end by themselves: the help of each, the outputs for a node, and the refusals of bad input."""

import asyncio
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpushare_plugin.testing.hosts import DRIVER, GPUS, OPERATOR_25_10, built
from gpushare_plugin.testing.nvml import FakeNvml
from tests.process.daemon import Argument, Finished, gpushare
from tests.skin.golden import Texts, masked

EXAMPLES = Path(__file__).parents[2] / "examples"
PLAIN = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "LC_ALL": "C.UTF-8"}
"""A terminal of a fixed width, without colours, with UTF-8."""
COMMANDS = (
    "check-config",
    "cleanup",
    "completion",
    "debug",
    "demo",
    "doctor",
    "explain",
    "extender",
    "inspect",
    "list",
    "mig",
    "mps",
    "partition",
    "run",
    "schema",
    "simulate",
    "version",
)
TOO_LARGE = """\
version: v1
sharing:
  memory:
    resources:
    - name: aliyun.com/gpu-mem
      unit: 256GiB
    - name: example.com/gpu-mem
      devices: [7]
"""
WRONG = TOO_LARGE.replace("sharing:", "flags:\n  migStrategy: sometimes\nsharing:")
UNKNOWN = "version: v1\nsharing: {memory: {resource: []}, timeSlices: {}}\nplugin: {}\n"
NO_YAML = "version: v1\nsharing: {memory: [\n"


async def recorded(folder: Path) -> Texts:
    """Return the help of all commands, what they print for a simulated node, and how they refuse."""
    helps = await _in_turn([("--help",), *((name, "--help") for name in COMMANDS)])
    texts = {f"help/{name}.txt": told(done) for name, done in zip(("gpushare", *COMMANDS), helps, strict=True)}
    (version,) = await _in_turn([("version",)])
    texts["commands/version.txt"] = told(version)
    return texts | await _of_a_node() | await _of_the_doctor(folder) | await _refusals(folder)


async def _of_a_node() -> Texts:
    """Return what is said of examples/ on the simulated nodes there, for people and as JSON."""
    four, mig = (EXAMPLES / f"gpus/{name}.yaml" for name in ("four-a100", "mig"))
    per_gpu, memory, of_mig = (EXAMPLES / f"configs/{name}.yaml" for name in ("per-gpu", "memory", "mig"))
    apart = ("--device-plugin-path", "/no/plugins")
    asked: dict[str, tuple[Argument, ...]] = {
        "check-config.txt": ("check-config", per_gpu, memory, "--simulate", four),
        "check-config.json": ("check-config", per_gpu, memory, "--simulate", four, "-o", "json"),
        "check-config-show.yaml": ("check-config", "--show", per_gpu, "--simulate", four),
        "check-config-against.txt": ("check-config", per_gpu, "--against", memory, "--simulate", four),
        "list.txt": ("list", "--config-file", per_gpu, "--simulate", four, *apart),
        "list.json": ("list", "--config-file", per_gpu, "--simulate", four, "-o", "json", *apart),
        "list-mig.txt": ("list", "--config-file", of_mig, "--simulate", mig, *apart),
    }
    done = await _in_turn(asked.values())
    return {f"commands/{name}": told(each) for name, each in zip(asked, done, strict=True)}


async def _of_the_doctor(folder: Path) -> Texts:
    """Return what is said of a node of NVIDIA's operator, whose GPUs no pod gets, for people and as JSON."""
    root = folder / "node"
    with FakeNvml(GPUS, driver_version=DRIVER) as nvml, built(OPERATOR_25_10, root, nvml.library):
        environment = {**nvml.environment, "POD_RESOURCES_SOCKET": ""}
        done = [await run("doctor", "--root", root, "-o", form, environment=environment) for form in ("text", "json")]
    texts = [
        re.sub(r"(root|user \d+), with(out)? CAP_SYS_ADMIN", "<rights>", told(each).replace(str(root), "<root>"))
        for each in done
    ]
    return {f"commands/doctor.{form}": text for form, text in zip(("txt", "json"), texts, strict=True)}


async def _refusals(folder: Path) -> Texts:
    """Return what is said of bad input, and the exit status."""
    for name, text in (("wrong", WRONG), ("too-large", TOO_LARGE), ("unknown", UNKNOWN), ("no-yaml", NO_YAML)):
        (folder / f"{name}.yaml").write_text(text)
    (folder / "gpus.yaml").write_text("gpus: [{memory: 16 gigabytes}, {name: A10, count: 0}]\n")
    four = ("--simulate", EXAMPLES / "gpus/four-a100.yaml")
    nowhere = ("--kubeconfig", folder / "no-kubeconfig")
    refused: tuple[tuple[Argument, ...], ...] = (
        ("serve",),
        ("run", "--log-level", "loud"),
        ("run", "--fallback-strategies", "named,first"),
        ("run", "--http-address", "everywhere", *four),
        ("list", "-o", "xml"),
        ("list", "--simulate", folder / "gpus.yaml"),
        ("check-config",),
        ("check-config", folder / "wrong.yaml", *four, "--cdi-kind=nonsense"),
        ("check-config", folder / "too-large.yaml", folder / "nothing.yaml", *four, "-o", "json"),
        ("check-config", folder / "unknown.yaml", folder / "no-yaml.yaml", folder / "too-large.yaml", *four),
        ("mps", "--mps-root", folder / "mps", *four, "--shared-memory", "1gb"),
        ("partition", "--patience", "0"),
        ("extender", "--listen-address", "32766:"),
        ("inspect", *nowhere),
    )
    parts = [
        f"$ gpushare {' '.join(map(str, arguments))}\n{told(done)}"
        for arguments, done in zip(refused, await _in_turn(refused), strict=True)
    ]
    return {"commands/refusals.txt": masked("\n".join(parts), folder=folder, examples=EXAMPLES)}


def told(done: Finished, places: Mapping[str, object] | None = None) -> str:
    """Return how a command ended and what it said; what it printed comes first, alone where all is well."""
    parts = [done.output]
    if done.errors:
        parts.append(f"--- standard error\n{done.errors}")
    if done.status:
        parts.append(f"--- exit status {done.status}\n")
    return masked("".join(parts), examples=EXAMPLES, **(places or {}))


async def run(*arguments: Argument, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command where its output has a fixed form, whatever the surroundings are."""
    without = {"KUBECONFIG": "/no/kubeconfig", "NODE_NAME": ""}
    return await gpushare(*arguments, environment={**without, **PLAIN, **(environment or {})})


async def _in_turn(commands: Iterable[tuple[Argument, ...]]) -> list[Finished]:
    """Run commands, two at a time."""
    seats = asyncio.Semaphore(2)

    async def seated(arguments: tuple[Argument, ...]) -> Finished:
        async with seats:
            return await run(*arguments)

    return await asyncio.gather(*map(seated, commands))

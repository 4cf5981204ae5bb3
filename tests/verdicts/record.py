"""Records verdicts: `python -m tests.verdicts.record --count 10000 --seed 1 --out FILE`.

A file has one line of JSON for each verdict, in xz: kind, number and hash of the input, and the whole verdict. The
first line names the version of the generator and the seed. `--show KIND NUMBER` prints an input, and what today's code
decides about it.
"""

import argparse
import json
import lzma
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.verdicts.cases import GENERATOR, KINDS, Case, Verdict, cases, verdict
from tests.verdicts.statistics import told

RECORDED = Path(__file__).parent / "verdicts.jsonl.xz"
"""The verdicts that are compared with today's."""


def write(file: Path, count: int, seed: int) -> Mapping[Case, Verdict]:
    """Record so many verdicts in a file, the same bytes for the same verdicts, and return them."""
    found = {case: verdict(case) for case in cases(count, seed)}
    lines: list[object] = [{"generator": GENERATOR, "seed": seed}]
    lines += [[case.kind, case.number, each.asked, each.decided] for case, each in found.items()]
    text = "".join(json.dumps(line, separators=(",", ":"), sort_keys=True) + "\n" for line in lines)
    file.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    return found


def read(file: Path) -> Iterator[tuple[Case, Verdict]]:
    """Yield the verdicts of a file; raises ValueError where another version of the generator made the inputs."""
    head, *lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    made = json.loads(head)
    if made["generator"] != GENERATOR:
        raise ValueError(f"{file} has inputs of generator {made['generator']}, and this is {GENERATOR}: record again")
    for line in lines:
        kind, number, asked, decided = json.loads(line)
        yield Case(kind, made["seed"], number), Verdict(asked, decided)


def main() -> None:
    """Record, or show one case."""
    parser = argparse.ArgumentParser(prog="python -m tests.verdicts.record", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="verdicts of all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the file to write")
    parser.add_argument("--show", nargs=2, metavar=("KIND", "NUMBER"), help=f"one of {', '.join(KINDS)}; and which")
    options = parser.parse_args()
    if options.show:
        case = Case(options.show[0], options.seed, int(options.show[1]))
        shown = {"asked": case.asked(), "decided": verdict(case).decided}
        sys.stdout.write(json.dumps(shown, indent=1) + "\n")
    elif options.out:
        found = write(options.out, options.count, options.seed)
        sys.stdout.write(told(found))
    else:
        parser.error("--out or --show is missing")


if __name__ == "__main__":
    main()

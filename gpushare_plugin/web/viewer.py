"""Who looks at the pages, and what they may see."""

from gpushare_plugin.base.structs import Struct


class Viewer(Struct, frozen=True):
    """A person who looks at the pages."""

    name: str
    """The name of the person for the log; empty for the person who started the program."""
    namespaces: frozenset[str] | None = None
    """The namespaces whose pods the person may see; None for all."""

    def sees(self, namespace: str) -> bool:
        """Return whether the person may see the pods of a namespace."""
        return self.namespaces is None or namespace in self.namespaces


EVERYTHING = Viewer("")
"""The person who started the program with a kubeconfig of their own, and sees what the kubeconfig shows."""

"""How value types are declared: the classes of msgspec, which are made when their module is imported.

Making a dataclass takes 0.65 ms, such a class 0.02 ms; the daemon imports over a hundred of them before it registers.
"""

from msgspec import Meta, Struct, field
from msgspec.structs import replace

__all__ = ["Meta", "Struct", "field", "replace"]

"""A stand-in for `nvidia-cuda-mps-control` and its server, for programs that run it from PATH.

with FakeMps() as mps:
    subprocess.run(["program"], env={**os.environ, **mps.environment})
"""

from gpushare_plugin.testing.mps.fake import FakeClient, FakeMps
from gpushare_plugin.testing.mps_programs.wire import FakeMpsError

__all__ = ["FakeClient", "FakeMps", "FakeMpsError"]

"""The program in a container: does on its GPU what it reads from standard input, one JSON object a line.

`{"do": "fill", "mib": 1024}` and its like are answered by one line, with `error` where the driver refused. The program
ends when standard input ends.
"""

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import pynvml

from real_gpus.cuda import Cuda, CudaError

Answer = dict[str, Any]


class Program:
    """Carries out orders on one GPU."""

    def __init__(self) -> None:
        """Touch no GPU yet."""
        self._cuda: Cuda | None = None

    def obey(self, order: Mapping[str, Any]) -> Answer:
        """Return the answer to `order`, whose `do` names a method of this class; `nothing` touches no GPU."""
        if order["do"] == "nothing":
            return {}
        try:
            cuda = self._cuda or Cuda()
            self._cuda = cuda
            answer: Answer = getattr(self, str(order["do"]))(cuda, order)
        except (CudaError, pynvml.NVMLError) as error:
            return {"error": str(error)}
        return answer

    def look(self, cuda: Cuda, _: Mapping[str, Any]) -> Answer:
        """Return the GPUs, memory in MiB and multiprocessors that the driver tells, and how many of them took part."""
        told = {"gpus": cuda.gpus, "total_mib": cuda.total_mib, "multiprocessors": cuda.multiprocessors}
        return {**told, "worked": cuda.work()}

    def hold(self, cuda: Cuda, order: Mapping[str, Any]) -> Answer:
        """Take `mib` MiB and keep them."""
        cuda.hold(order["mib"])
        return {}

    def fill(self, cuda: Cuda, order: Mapping[str, Any]) -> Answer:
        """Take as much as the driver gives, at most `mib` MiB, and give all of it back unless told to `keep` it."""
        taken, refusal = cuda.fill(order["mib"])
        if not order.get("keep"):
            cuda.free()
        return {"mib": taken, "refusal": refusal}

    def manage(self, cuda: Cuda, order: Mapping[str, Any]) -> Answer:
        """Take `mib` MiB of managed memory, write all of it on the GPU, and give it back."""
        cuda.manage(order["mib"])
        cuda.free()
        return {}

    def export(self, cuda: Cuda, order: Mapping[str, Any]) -> Answer:
        """Take `mib` MiB that other processes can import, and keep them; return the handle for that."""
        return {"handle": cuda.exported(order["mib"])}

    def import_(self, cuda: Cuda, order: Mapping[str, Any]) -> Answer:
        """Import the memory of another process by its `handle`, and keep it."""
        cuda.import_(order["handle"])
        return {}

    def ask_nvml(self, cuda: Cuda, _: Mapping[str, Any]) -> Answer:
        """Return the memory in MiB that NVML tells this process of its GPU."""
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(cuda.gpus[0])
        return {"total_mib": pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).total >> 20}

    def work(self, cuda: Cuda, order: Mapping[str, Any]) -> Answer:
        """Compute for `seconds`; return how often per second."""
        began = time.monotonic()
        count = 0
        while time.monotonic() - began < order["seconds"]:
            cuda.work()
            count += 1
        return {"rate": count / (time.monotonic() - began)}

    def fault(self, cuda: Cuda, _: Mapping[str, Any]) -> Answer:
        """Write where no memory is."""
        cuda.fault()
        return {}


def main() -> None:
    """Obey until standard input ends."""
    program = Program()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(program.obey(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

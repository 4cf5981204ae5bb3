"""The calls of the CUDA driver that the programs need, by ctypes: no toolkit and no compiler.

Source: cuda.h of the CUDA toolkit, "CUDA Driver API". This module imports nothing of gpushare, since programs run
under the name of a container and not in the environment of gpushare.
"""

import ctypes
import uuid
from typing import Any

_MIB = 1 << 20
_MULTIPROCESSORS = 16
"""CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
_BLOCKS = 1024
_THREADS = 1024
_ITERATIONS = 50_000
"""Some 3 ms on all multiprocessors of an H100."""
_MEM_ATTACH_GLOBAL = 1
_LAZY_PEER_ACCESS = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS."""
_NOWHERE = 1 << 44
"""An address at which no memory is."""

_PTX = b"""
.version 6.0
.target sm_50
.address_size 64

// Every block writes the number of its multiprocessor to `out`, and every thread computes `iterations` times.
.visible .entry work(.param .u32 iterations, .param .u64 out)
{
    .reg .pred more;
    .reg .f32 value;
    .reg .b32 left, processor, block;
    .reg .b64 address, offset;

    ld.param.u32 left, [iterations];
    ld.param.u64 address, [out];
    cvta.to.global.u64 address, address;
    mov.u32 processor, %smid;
    mov.u32 block, %ctaid.x;
    mul.wide.u32 offset, block, 4;
    add.s64 address, address, offset;
    st.global.u32 [address], processor;
    mov.f32 value, 0f3F800000;
again:
    fma.rn.f32 value, value, value, value;
    sub.u32 left, left, 1;
    setp.ne.u32 more, left, 0;
    @more bra again;
    setp.eq.f32 more, value, 0f00000000;
    @more st.global.u32 [address], left;
    ret;
}
\0"""


class _IpcHandle(ctypes.Structure):
    """`CUipcMemHandle`."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class CudaError(Exception):
    """A call of the driver failed; the message is the driver's name of the error."""


class Cuda:
    """A context on the first GPU that this process sees."""

    def __init__(self) -> None:
        """Load the driver and make the context; raises CudaError, and OSError without a driver."""
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        self.gpus = tuple(map(self._uuid, range(count.value)))
        """The UUIDs of the GPUs that this process sees."""
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._held: list[ctypes.c_uint64] = []
        self._out = self._allocated(_BLOCKS * 4)
        module, self._work = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), _PTX)
        self._call("cuModuleGetFunction", ctypes.byref(self._work), module, b"work")

    @property
    def multiprocessors(self) -> int:
        """The multiprocessors that the driver says this process has."""
        found = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(found), _MULTIPROCESSORS, self._device)
        return found.value

    @property
    def total_mib(self) -> int:
        """The memory of the GPU that the driver tells this process, in MiB."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value // _MIB

    def hold(self, mib: int) -> None:
        """Take `mib` MiB more; raises CudaError."""
        self._held.append(self._allocated(mib * _MIB))

    def fill(self, most: int) -> tuple[int, str]:
        """Take memory until the driver refuses, at most `most` MiB; return how many MiB, and the refusal if any."""
        taken, step, refusal = 0, 256, ""
        while step and taken < most:
            wanted = min(step, most - taken)
            try:
                self.hold(wanted)
            except CudaError as error:
                refusal = str(error)
                step = wanted // 2
            else:
                taken += wanted
        return taken, refusal if taken < most else ""

    def manage(self, mib: int) -> None:
        """Take `mib` MiB of managed memory and write all of it on the GPU; raises CudaError."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(mib * _MIB), _MEM_ATTACH_GLOBAL)
        self._held.append(pointer)
        self._call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(mib * _MIB))
        self._call("cuCtxSynchronize")

    def exported(self, mib: int) -> str:
        """Take `mib` MiB more; return the handle by which other processes can import the memory."""
        self.hold(mib)
        handle = _IpcHandle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), self._held[-1])
        return bytes(handle).hex()

    def import_(self, handle: str) -> None:
        """Import the memory of another process, which this process keeps until its end; raises CudaError."""
        pointer, given = ctypes.c_uint64(), _IpcHandle.from_buffer_copy(bytes.fromhex(handle))
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), given, _LAZY_PEER_ACCESS)

    def free(self) -> None:
        """Give all memory back that this process took."""
        while self._held:
            self._call("cuMemFree_v2", self._held.pop())

    def work(self) -> int:
        """Compute for some milliseconds; return the number of multiprocessors that took part."""
        self._launch(self._out)
        numbers = (ctypes.c_uint32 * _BLOCKS)()
        self._call("cuMemcpyDtoH_v2", numbers, self._out, ctypes.c_size_t(ctypes.sizeof(numbers)))
        return len(set(numbers))

    def fault(self) -> None:
        """Write where no memory is; raises CudaError."""
        self._launch(ctypes.c_uint64(_NOWHERE))

    def _launch(self, out: ctypes.c_uint64) -> None:
        iterations = ctypes.c_uint32(_ITERATIONS)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(iterations), ctypes.addressof(out))
        shape = (_BLOCKS, 1, 1, _THREADS, 1, 1)
        self._call("cuLaunchKernel", self._work, *shape, 0, None, arguments, None)
        self._call("cuCtxSynchronize")

    def _allocated(self, size: int) -> ctypes.c_uint64:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def _uuid(self, ordinal: int) -> str:
        device, found = ctypes.c_int(), (ctypes.c_ubyte * 16)()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._call("cuDeviceGetUuid_v2", found, device)
        return f"GPU-{uuid.UUID(bytes=bytes(found))}"

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(self._library, name)(*arguments)
        if result:
            words = ctypes.c_char_p()
            self._library.cuGetErrorName(result, ctypes.byref(words))
            raise CudaError(words.value.decode() if words.value else f"{name}: error {result}")

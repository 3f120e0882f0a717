"""Asks NVML how much memory there is, as Python's bindings of it do."""

import ctypes


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


nvml, driver = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_void_p(), ctypes.c_void_p(), Memory()
address, free, total = ctypes.c_ulonglong(), ctypes.c_size_t(), ctypes.c_size_t()
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert driver.cuInit(0) == 0
assert driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(5 << 20)) == 0
assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
print(f"total {memory.total} free {memory.free} used {memory.used}")
print(f"total {total.value} free {free.value} used {total.value - free.value}")

"""Uses the driver with nothing but ctypes."""

import ctypes
import sys

driver = ctypes.CDLL("libcuda.so.1")
context, p, word = ctypes.c_void_p(), ctypes.c_ulonglong(), ctypes.c_uint()
driver.cuMemFree_v2.argtypes = [ctypes.c_ulonglong]
driver.cuMemsetD32_v2.argtypes = [ctypes.c_ulonglong, ctypes.c_uint, ctypes.c_size_t]
driver.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_size_t]
for code in (
    driver.cuInit(0),
    driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0),
    driver.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(1 << 20)),
    driver.cuMemsetD32_v2(p.value, 42, 1 << 18),
    driver.cuMemcpyDtoH_v2(ctypes.byref(word), p.value, 4),
    driver.cuMemFree_v2(p.value),
):
    if code:
        sys.exit(code)
print(f"code 0, holds {word.value}")

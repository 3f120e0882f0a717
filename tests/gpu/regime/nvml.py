"""Queries NVML and the driver for used memory while it allocates; prints one JSON object. Uses
ctypes only, like Python's NVML bindings. Does not use feRcuda."""

import ctypes
import json

SIZES = [1000, 700 << 20, 3 << 20]
LEFT = 64 << 20


class Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class MemoryV2(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint)] + [(n, ctypes.c_ulonglong) for n in ("total", "reserved", "free", "used")]


nvml, driver = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")


def ok(code):
    if code:
        raise SystemExit(f"a call answered {code}")


def by_nvml(device):
    one, two = Memory(), MemoryV2(version=ctypes.sizeof(MemoryV2) | 2 << 24)
    ok(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(one)))
    ok(nvml.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(two)))
    return {
        "nvml": {"total": one.total, "free": one.free, "used": one.used},
        "nvml_v2": {"total": two.total, "free": two.free, "used": two.used + two.reserved},
    }


def look(device):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    # Twice, so that what changes meanwhile is seen.
    for _ in range(20):
        ok(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        first = free.value
        figures = by_nvml(device)
        ok(driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
        if free.value == first:
            used = total.value - free.value
            return figures | {"driver": {"total": total.value, "free": free.value, "used": used}}
    raise SystemExit("the driver's figures keep changing")


def main():
    context, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(16)
    devices = ctypes.c_uint()
    ok(nvml.nvmlInit_v2())
    ok(nvml.nvmlDeviceGetCount_v2(ctypes.byref(devices)))
    handles = [ctypes.c_void_p() for _ in range(devices.value)]
    for index, handle in enumerate(handles):
        ok(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
    figures = {"early": by_nvml(handles[0])}
    ok(driver.cuInit(0))
    ok(driver.cuDeviceGetUuid_v2(uuid, 0))
    wanted = uuid.raw.hex()
    text = ctypes.create_string_buffer(96)
    for device in handles:
        ok(nvml.nvmlDeviceGetUUID(device, text, 96))
        if text.value.decode()[4:].replace("-", "") == wanted:
            break
    else:
        raise SystemExit("NVML does not know the driver's first device")
    ok(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    ok(driver.cuCtxSetCurrent(context))
    figures["made"] = look(device)
    addresses = [ctypes.c_ulonglong() for _ in SIZES]
    for address, size in zip(addresses, SIZES):
        ok(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)))
    figures["held"] = look(device)
    figures["bytes"] = sum(-(-size // 256) * 256 for size in SIZES)
    for address in addresses:
        ok(driver.cuMemFree_v2(address))
    ok(driver.cuCtxSynchronize())
    figures["freed"] = look(device)
    left = ctypes.c_ulonglong()
    ok(driver.cuMemAlloc_v2(ctypes.byref(left), ctypes.c_size_t(LEFT)))
    figures["end"] = look(device)
    figures["left"] = LEFT
    print(json.dumps(figures), flush=True)


main()

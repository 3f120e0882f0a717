//! Interposed NVML memory queries.
//!
//! A server that queries NVML has to get what `cuMemGetInfo` reports, or it allocates more
//! than its limit. A program finds NVML by linking to it, for which this library exports
//! the two functions, or by `dlsym` with NVML's handle, for which `dlsym` is interposed:
//! for any other name it is a jump to the loader's own, which so sees its caller's address.
//!
//! Invariants: NVML is called first, and its errors are returned; a device without
//! governed memory has NVML's own figures. A query does not start the governor: a process
//! that has not used the driver may fork children that do.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CUdevice, CUresult, CUuuid};

use fercuda_regime::{answer, catch_panic, config, governor_if_started, is_disabled};

use crate::exports::noting_stub;
use crate::next_definition::{interposed_by_us, open};
use crate::real_driver::real_driver;

/// NVML's code for success.
const SUCCESS: c_int = 0;
/// NVML's code for a missing library. A caller that has initialised NVML never gets it.
const LIBRARY_NOT_FOUND: c_int = 12;
/// The longest UUID text.
const MAX_UUID_BYTES: usize = 96;

type NvmlDevice = *mut c_void;

/// `nvmlMemory_t`, in bytes.
#[repr(C)]
pub(crate) struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`; its version field contains its size.
#[repr(C)]
pub(crate) struct NvmlMemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

const VERSION: c_uint = size_of::<NvmlMemoryV2>() as c_uint | 2 << 24;

type MemoryInfoFn = unsafe extern "C" fn(NvmlDevice, *mut NvmlMemory) -> c_int;
type MemoryInfoV2Fn = unsafe extern "C" fn(NvmlDevice, *mut NvmlMemoryV2) -> c_int;
type UuidFn = unsafe extern "C" fn(NvmlDevice, *mut c_char, c_uint) -> c_int;

/// The loaded NVML, which is never unloaded.
struct Nvml {
    base: usize,
    info: MemoryInfoFn,
    info_v2: Option<MemoryInfoV2Fn>,
    uuid: UuidFn,
}

static NVML: OnceLock<Nvml> = OnceLock::new();

const INFO: &CStr = c"nvmlDeviceGetMemoryInfo";
const INFO_V2: &CStr = c"nvmlDeviceGetMemoryInfo_v2";

/// The load address of the object that contains a function, if that object is NVML. Keeps it
/// loaded.
fn base_of_nvml(function: *mut c_void) -> Option<usize> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr accepts any address; `info` is filled if it answers so.
    if unsafe { libc::dladdr(function, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: filled, see above.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own string.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let file = name.to_bytes().rsplit(|byte| *byte == b'/').next();
    let is_nvml = file.is_some_and(|file| file.starts_with(b"libnvidia-ml.so"));
    if !is_nvml {
        return None;
    }
    let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: the name of a loaded object; RTLD_NODELETE keeps it loaded.
    let handle = unsafe { open(name.as_ptr(), flags) };
    (!handle.is_null()).then_some(info.dli_fbase as usize)
}

impl Nvml {
    /// NVML by its functions, which `find` looks up.
    fn resolve(find: impl Fn(&CStr) -> *mut c_void) -> Option<Nvml> {
        let find = |name: &CStr| {
            let found = find(name);
            if found.is_null() {
                // Clears the lookup's error, which the program did not cause.
                // SAFETY: takes nothing; what it points to is not used.
                let _discarded = unsafe { libc::dlerror() };
            }
            found
        };
        let info = NonNull::new(find(INFO))?;
        let uuid = NonNull::new(find(c"nvmlDeviceGetUUID"))?;
        let base = base_of_nvml(info.as_ptr())?;
        // SAFETY: NVML's functions of these names have these types.
        unsafe {
            Some(Nvml {
                base,
                info: core::mem::transmute::<NonNull<c_void>, MemoryInfoFn>(info),
                info_v2: core::mem::transmute::<*mut c_void, Option<MemoryInfoV2Fn>>(find(INFO_V2)),
                uuid: core::mem::transmute::<NonNull<c_void>, UuidFn>(uuid),
            })
        }
    }

    /// NVML, for callers that are linked to it.
    fn get() -> Option<&'static Nvml> {
        if let Some(nvml) = NVML.get() {
            return Some(nvml);
        }
        // SAFETY: a name, and the handle that searches the libraries behind this one.
        let behind = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        // Resolved outside `get_or_init`, so that no thread waits for one that calls the
        // loader, which has a lock of its own.
        let nvml = Nvml::resolve(behind).or_else(Nvml::resolve_loaded)?;
        Some(NVML.get_or_init(|| nvml))
    }

    /// NVML, if a library has loaded it without RTLD_GLOBAL.
    fn resolve_loaded() -> Option<Nvml> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: a name; nothing is loaded.
        let handle = unsafe { open(c"libnvidia-ml.so.1".as_ptr(), flags) };
        let handle = NonNull::new(handle)?.as_ptr();
        // SAFETY: a loader's handle, which stays open, and a name.
        Nvml::resolve(|name| unsafe { next_dlsym_of(handle, name) })
    }

    /// The driver's ordinal of an NVML device; `None` if the driver shows the process no such
    /// device.
    fn ordinal(&self, device: NvmlDevice) -> Option<u32> {
        let mut text = [0 as c_char; MAX_UUID_BYTES];
        // SAFETY: a handle that NVML has just accepted; `text` has the length passed.
        let queried = unsafe { (self.uuid)(device, text.as_mut_ptr(), MAX_UUID_BYTES as c_uint) };
        if queried != SUCCESS {
            return None;
        }
        let text = text.map(|byte| byte as u8);
        let uuid = parse_uuid(CStr::from_bytes_until_nul(&text).ok()?.to_bytes())?;
        let driver = real_driver(noting_stub)?.driver;
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let counted = answer(unsafe { driver.cuDeviceGetCount(&mut count) });
        let count = if counted == CUresult::CUDA_SUCCESS {
            count
        } else {
            0
        };
        let has_uuid = |ordinal: &CUdevice| {
            let mut its_uuid = CUuuid::default();
            // SAFETY: `its_uuid` outlives the call.
            let queried = answer(unsafe { driver.cuDeviceGetUuid_v2(&mut its_uuid, *ordinal) });
            queried == CUresult::CUDA_SUCCESS && its_uuid.bytes.map(|byte| byte as u8) == uuid
        };
        (0..count).find(has_uuid).map(|ordinal| ordinal as u32)
    }
}

/// Parses `GPU-` or `MIG-` and a UUID into sixteen bytes.
fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    let (_, digits) = text.split_at_checked(4)?;
    let mut digits = digits.iter().filter(|byte| **byte != b'-');
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        let mut digit = || char::from(*digits.next()?).to_digit(16);
        *byte = (digit()? << 4 | digit()?) as u8;
    }
    digits.next().is_none().then_some(uuid)
}

/// The governed figures of a device, free and total, given NVML's; `None` if NVML's apply.
fn governed_figures(
    nvml: &Nvml,
    device: NvmlDevice,
    (free, total): (u64, u64),
) -> Option<(u64, u64)> {
    if is_disabled() {
        return None;
    }
    let within_limit = || {
        let total = config().limit?.get().min(total);
        Some((free.min(total), total))
    };
    match governor_if_started() {
        // It is unknown which devices the process will use.
        None => within_limit(),
        Some(None) => None,
        Some(Some(governor)) => {
            let ordinal = nvml.ordinal(device)?;
            match governor.devices().find(|it| it.ordinal() == ordinal) {
                Some(device) => Some(governor.reported_memory_without_context(device, free)),
                None => within_limit(),
            }
        }
    }
}

/// NVML's function of this name, with governed figures.
// SAFETY: interposes NVML's function of this name and type, and calls it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: NvmlDevice, memory: *mut NvmlMemory) -> c_int {
    let Some(nvml) = catch_panic(Nvml::get) else {
        return LIBRARY_NOT_FOUND;
    };
    // SAFETY: the program's own arguments.
    let result = unsafe { (nvml.info)(device, memory) };
    if result == SUCCESS
        // SAFETY: NVML has just filled it.
        && let Some(memory) = unsafe { memory.as_mut() }
        && let Some((free, total)) =
            catch_panic(|| governed_figures(nvml, device, (memory.free, memory.total)))
    {
        let used = total.saturating_sub(free);
        *memory = NvmlMemory { total, free, used };
    }
    result
}

/// As above. The driver's figures contain nothing of what the system reserves, so `reserved`
/// is 0.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: NvmlDevice,
    memory: *mut NvmlMemoryV2,
) -> c_int {
    let found = catch_panic(|| {
        let nvml = Nvml::get()?;
        Some((nvml, nvml.info_v2?))
    });
    let Some((nvml, info)) = found else {
        return LIBRARY_NOT_FOUND;
    };
    // SAFETY: the program's own arguments.
    let result = unsafe { info(device, memory) };
    if result == SUCCESS
        && !memory.is_null()
        // SAFETY: NVML has just read it. Another version may be shorter.
        && unsafe { (&raw const (*memory).version).read() } == VERSION
        // SAFETY: it has this version, and NVML has just filled it.
        && let Some(memory) = unsafe { memory.as_mut() }
        && let Some((free, total)) =
            catch_panic(|| governed_figures(nvml, device, (memory.free, memory.total)))
    {
        *memory = NvmlMemoryV2 {
            version: VERSION,
            total,
            reserved: 0,
            free,
            used: total.saturating_sub(free),
        };
    }
    result
}

// ---- dlsym -------------------------------------------------------------------

/// The loader's own `dlsym`; before it is found, the stub that finds it.
static NEXT_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(find_next_dlsym as *mut c_void);

/// Finds the loader's own `dlsym`, by the versions it has had since the first glibc.
extern "C" fn next_dlsym() -> *mut c_void {
    let versions = [c"GLIBC_2.2.5", c"GLIBC_2.34"];
    let found = versions.iter().find_map(|version| {
        let handles = [libc::RTLD_NEXT, libc::RTLD_DEFAULT];
        // SAFETY: names, and the handles that search the libraries behind this one, and all.
        let all = handles
            .map(|handle| unsafe { libc::dlvsym(handle, c"dlsym".as_ptr(), version.as_ptr()) });
        interposed_by_us(all)
    });
    let found = found.unwrap_or(lookup_fails as *mut c_void);
    NEXT_DLSYM.store(found, Relaxed);
    found
}

/// Stands in for a `dlsym` that no library defines.
extern "C" fn lookup_fails(_: *mut c_void, _: *const c_char) -> *mut c_void {
    null_mut()
}

#[unsafe(naked)]
unsafe extern "C" fn find_next_dlsym() {
    core::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {next}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        next = sym next_dlsym,
    )
}

/// Looks up a symbol with the loader's own `dlsym`.
///
/// # Safety
/// `handle` is the loader's.
unsafe fn next_dlsym_of(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the slot has a function of this type; the caller's promise.
    unsafe {
        let next = core::mem::transmute::<
            *mut c_void,
            unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
        >(NEXT_DLSYM.load(Relaxed));
        next(handle, name.as_ptr())
    }
}

/// The function to return instead of NVML's; null if the loader has to handle the lookup.
///
/// # Safety
/// `name` is a C string, `handle` one that `dlsym` accepts.
unsafe extern "C" fn substitute(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    let requested = unsafe { CStr::from_ptr(name) };
    let own = match requested {
        _ if requested == INFO => nvmlDeviceGetMemoryInfo as *mut c_void,
        _ if requested == INFO_V2 => nvmlDeviceGetMemoryInfo_v2 as *mut c_void,
        _ => return null_mut(),
    };
    // SAFETY: the caller's handle, and names.
    let find = |name: &CStr| unsafe { next_dlsym_of(handle, name) };
    let found = catch_panic(|| resolves_to_nvml(handle, requested, find).then_some(()));
    found.map_or(null_mut(), |()| own)
}

/// Whether the loader resolves a name, by `find`, to the NVML that is interposed. The first
/// NVML found becomes that one.
fn resolves_to_nvml(
    handle: *mut c_void,
    requested: &CStr,
    find: impl Fn(&CStr) -> *mut c_void + Copy,
) -> bool {
    // The result of these depends on the caller; the loader finds the exported functions.
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT || is_disabled() {
        return false;
    }
    let Some(base) = base_of_nvml(find(requested)) else {
        return false;
    };
    if NVML.get().is_none()
        && let Some(nvml) = Nvml::resolve(find)
    {
        // Another thread may have set it first.
        let _is_set = NVML.set(nvml);
    }
    // A second copy of NVML has handles of its own and is left alone.
    NVML.get().is_some_and(|nvml| nvml.base == base)
}

/// Returns the interposed functions for NVML's two names; see the module.
// SAFETY: interposes the loader's function of this name, and jumps to it.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlsym() {
    core::arch::naked_asm!(
        "test rsi, rsi",
        "jz 2f",
        // A byte at a time: a name may end where memory does.
        "cmp byte ptr [rsi], 'n'",
        "jne 2f",
        "cmp byte ptr [rsi + 1], 'v'",
        "jne 2f",
        "cmp byte ptr [rsi + 2], 'm'",
        "jne 2f",
        "cmp byte ptr [rsi + 3], 'l'",
        "jne 2f",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {substitute}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {next}]",
        substitute = sym substitute,
        next = sym NEXT_DLSYM,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_in_nvmls_format_are_parsed() {
        let bytes: [u8; 16] = std::array::from_fn(|n| (n * 17) as u8);
        for text in [
            &b"GPU-00112233-4455-6677-8899-aabbccddeeff"[..],
            b"MIG-00112233-4455-6677-8899-AABBCCDDEEFF",
        ] {
            assert_eq!(parse_uuid(text), Some(bytes));
        }
        for text in [
            &b""[..],
            b"GPU",
            b"GPU-",
            b"GPU-00112233-4455-6677-8899-aabbccddeef",
            b"GPU-00112233-4455-6677-8899-aabbccddeeff0",
            b"GPU-00112233-4455-6677-8899-aabbccddeefg",
            b"MIG-GPU-00112233-4455-6677-8899-aabbccddeeff/1/0",
        ] {
            assert_eq!(parse_uuid(text), None, "{}", text.escape_ascii());
        }
    }
}

//! NVML's two functions that say how much memory a device has.
//!
//! A server that asks NVML has to hear what `cuMemGetInfo` says, or it takes
//! more than it may. NVML is found by linking to it, for which this library
//! exports the two functions, or by `dlsym` with a handle of it, for which there
//! is `dlsym`: it looks at the name, and for all names but these two it is a
//! jump to the loader's own, which so sees its caller's address.
//!
//! Invariants: NVML answers first, and what it refuses stays refused; a device
//! whose memory is not governed has NVML's own figures. Asking NVML begins
//! nothing: a process that has not used the driver may fork children that do.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use fercuda_cuda_sys::types::{CUdevice, CUresult, CUuuid};

use fercuda_regime::{answer, begun, config, guarded, is_disabled};

use crate::{loader, real};

/// The answer of a function that was called.
const SUCCESS: c_int = 0;
/// The answer where NVML is not there, which only who has not begun it can hear.
const LIBRARY_NOT_FOUND: c_int = 12;
/// What UUIDs need at most.
const UUID_BYTES: usize = 96;

type Handle = *mut c_void;

/// Bytes of a device.
#[repr(C)]
pub(crate) struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// The same in the second version, which says its own size.
#[repr(C)]
pub(crate) struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

const VERSION: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

type Info = unsafe extern "C" fn(Handle, *mut Memory) -> c_int;
type InfoV2 = unsafe extern "C" fn(Handle, *mut MemoryV2) -> c_int;
type Uuid = unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int;

/// NVML as it is loaded. It stays so.
struct Nvml {
    base: usize,
    info: Info,
    info_v2: Option<InfoV2>,
    uuid: Uuid,
}

static NVML: OnceLock<Nvml> = OnceLock::new();

const INFO: &CStr = c"nvmlDeviceGetMemoryInfo";
const INFO_V2: &CStr = c"nvmlDeviceGetMemoryInfo_v2";

/// Where an object is loaded, if it is NVML.
fn base_of_nvml(function: *mut c_void) -> Option<usize> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address may be asked for; `info` is filled if it answers so.
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
    // SAFETY: the name of an object that is loaded, which stays so from now on.
    let stays = unsafe { loader::open(name.as_ptr(), flags) };
    (!stays.is_null()).then_some(info.dli_fbase as usize)
}

impl Nvml {
    /// NVML as `find` finds its functions.
    fn found(find: impl Fn(&CStr) -> *mut c_void) -> Option<Nvml> {
        let find = |name: &CStr| {
            let found = find(name);
            if found.is_null() {
                // The program's own call may go well, and is not to find this one's error.
                // SAFETY: takes nothing; what it points to is not used.
                let _it_is_forgotten = unsafe { libc::dlerror() };
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
                info: core::mem::transmute::<NonNull<c_void>, Info>(info),
                info_v2: core::mem::transmute::<*mut c_void, Option<InfoV2>>(find(INFO_V2)),
                uuid: core::mem::transmute::<NonNull<c_void>, Uuid>(uuid),
            })
        }
    }

    /// NVML, for who is linked to it.
    fn get() -> Option<&'static Nvml> {
        if let Some(nvml) = NVML.get() {
            return Some(nvml);
        }
        // SAFETY: a name, and the handle that means the libraries behind this one.
        let behind = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        // Nothing else is done while others wait: the loader may have them wait too.
        let nvml = Nvml::found(behind).or_else(Nvml::loaded)?;
        Some(NVML.get_or_init(|| nvml))
    }

    /// NVML, where only some library can see it.
    fn loaded() -> Option<Nvml> {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
        // SAFETY: a name; nothing is loaded.
        let handle = unsafe { loader::open(c"libnvidia-ml.so.1".as_ptr(), flags) };
        let handle = NonNull::new(handle)?.as_ptr();
        // SAFETY: a handle of the loader's, which stays open, and a name.
        Nvml::found(|name| unsafe { next_dlsym_of(handle, name) })
    }

    /// The number by which the driver knows a device of NVML's; none if it
    /// shows the process no such device.
    fn ordinal(&self, device: Handle) -> Option<u32> {
        let mut text = [0 as c_char; UUID_BYTES];
        // SAFETY: a handle that NVML has just taken; `text` is as long as it is said to be.
        let asked = unsafe { (self.uuid)(device, text.as_mut_ptr(), UUID_BYTES as c_uint) };
        if asked != SUCCESS {
            return None;
        }
        let text = text.map(|byte| byte as u8);
        let uuid = parsed(CStr::from_bytes_until_nul(&text).ok()?.to_bytes())?;
        let driver = real::real()?.driver;
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let counted = answer(unsafe { driver.cuDeviceGetCount(&mut count) });
        let count = if counted == CUresult::CUDA_SUCCESS {
            count
        } else {
            0
        };
        let is_it = |ordinal: &CUdevice| {
            let mut its = CUuuid::default();
            // SAFETY: `its` outlives the call.
            let asked = answer(unsafe { driver.cuDeviceGetUuid_v2(&mut its, *ordinal) });
            asked == CUresult::CUDA_SUCCESS && its.bytes.map(|byte| byte as u8) == uuid
        };
        (0..count).find(is_it).map(|ordinal| ordinal as u32)
    }
}

/// The sixteen bytes of `GPU-` or `MIG-` and a UUID.
fn parsed(text: &[u8]) -> Option<[u8; 16]> {
    let (_, digits) = text.split_at_checked(4)?;
    let mut digits = digits.iter().filter(|byte| **byte != b'-');
    let mut uuid = [0; 16];
    for byte in &mut uuid {
        let mut digit = || char::from(*digits.next()?).to_digit(16);
        *byte = (digit()? << 4 | digit()?) as u8;
    }
    digits.next().is_none().then_some(uuid)
}

/// What is to be told of a device, free and in all, of which NVML says
/// something; none if that stays.
fn told(nvml: &Nvml, device: Handle, (free, total): (u64, u64)) -> Option<(u64, u64)> {
    if is_disabled() {
        return None;
    }
    let within_limit = || {
        let total = config().limit?.get().min(total);
        Some((free.min(total), total))
    };
    match begun() {
        // Nobody knows yet which devices the process will use.
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

/// NVML's function of this name, with what is governed made true.
// SAFETY: stands before NVML's function of this name and type, and calls it.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut Memory) -> c_int {
    let Some(nvml) = guarded(Nvml::get) else {
        return LIBRARY_NOT_FOUND;
    };
    // SAFETY: the program's own arguments.
    let result = unsafe { (nvml.info)(device, memory) };
    if result == SUCCESS
        // SAFETY: NVML has just filled it.
        && let Some(memory) = unsafe { memory.as_mut() }
        && let Some((free, total)) =
            guarded(|| told(nvml, device, (memory.free, memory.total)))
    {
        let used = total.saturating_sub(free);
        *memory = Memory { total, free, used };
    }
    result
}

/// As above. What the system reserves is in no figure of the driver's, nor here.
// SAFETY: as above.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut MemoryV2) -> c_int {
    let found = guarded(|| {
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
        // SAFETY: NVML has just read it. Of another version it may be shorter.
        && unsafe { (&raw const (*memory).version).read() } == VERSION
        // SAFETY: of this version, and NVML has just filled it.
        && let Some(memory) = unsafe { memory.as_mut() }
        && let Some((free, total)) =
            guarded(|| told(nvml, device, (memory.free, memory.total)))
    {
        *memory = MemoryV2 {
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

/// The loader's own; until that is found, what finds it.
static NEXT_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(find_next_dlsym as *mut c_void);

/// Finds the loader's own `dlsym`. It had a version from the first on.
extern "C" fn next_dlsym() -> *mut c_void {
    let versions = [c"GLIBC_2.2.5", c"GLIBC_2.34"];
    let found = versions.iter().find_map(|version| {
        let places = [libc::RTLD_NEXT, libc::RTLD_DEFAULT];
        // SAFETY: names, and the handles that mean the libraries behind this
        // one, and all.
        let all =
            places.map(|place| unsafe { libc::dlvsym(place, c"dlsym".as_ptr(), version.as_ptr()) });
        loader::behind(all)
    });
    let found = found.unwrap_or(finds_nothing as *mut c_void);
    NEXT_DLSYM.store(found, Relaxed);
    found
}

/// In place of a `dlsym` that is nowhere.
extern "C" fn finds_nothing(_: *mut c_void, _: *const c_char) -> *mut c_void {
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

/// What the loader's own finds in a library.
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

/// The function to be given instead of NVML's; null if the loader is to answer.
///
/// # Safety
/// `name` is a C string, `handle` what `dlsym` takes.
unsafe extern "C" fn instead(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the caller's promise.
    let asked = unsafe { CStr::from_ptr(name) };
    let own = match asked {
        _ if asked == INFO => nvmlDeviceGetMemoryInfo as *mut c_void,
        _ if asked == INFO_V2 => nvmlDeviceGetMemoryInfo_v2 as *mut c_void,
        _ => return null_mut(),
    };
    // SAFETY: the caller's handle, and names.
    let find = |name: &CStr| unsafe { next_dlsym_of(handle, name) };
    let is_its = guarded(|| is_of_nvml(handle, asked, find).then_some(()));
    is_its.map_or(null_mut(), |()| own)
}

/// Whether what the loader finds under a name, by `find`, is the NVML that is
/// answered for.
fn is_of_nvml(
    handle: *mut c_void,
    asked: &CStr,
    find: impl Fn(&CStr) -> *mut c_void + Copy,
) -> bool {
    // What these find depends on who asks; the loader finds the exported ones.
    if handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT || is_disabled() {
        return false;
    }
    let Some(base) = base_of_nvml(find(asked)) else {
        return false;
    };
    if NVML.get().is_none()
        && let Some(nvml) = Nvml::found(find)
    {
        // Another thread may have been here.
        let _it_is_set = NVML.set(nvml);
    }
    // A second copy of NVML has handles of its own and is left alone.
    NVML.get().is_some_and(|nvml| nvml.base == base)
}

/// See the module.
// SAFETY: stands before the loader's function of this name, and jumps to it.
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
        "call {instead}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jz 2f",
        "ret",
        "2:",
        "jmp qword ptr [rip + {next}]",
        instead = sym instead,
        next = sym NEXT_DLSYM,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_read_as_nvml_writes_them() {
        let bytes: [u8; 16] = std::array::from_fn(|n| (n * 17) as u8);
        for text in [
            &b"GPU-00112233-4455-6677-8899-aabbccddeeff"[..],
            b"MIG-00112233-4455-6677-8899-AABBCCDDEEFF",
        ] {
            assert_eq!(parsed(text), Some(bytes));
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
            assert_eq!(parsed(text), None, "{}", text.escape_ascii());
        }
    }
}

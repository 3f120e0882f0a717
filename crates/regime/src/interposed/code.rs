//! Loaded code. The driver allocates memory for it lazily; the size of the loaded image is
//! the estimate that is charged.

use core::ffi::{CStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;

use fercuda_cuda_sys::types::{CUjit_option, CUlibrary, CUlibraryOption, CUmodule, CUresult};
use fercuda_cuda_sys::{Driver, Missing};
use fercuda_governor::GovernedKey;

use super::linear::release_governed;
use crate::process::{call_driver, catch_panic, governor, with_thread_context};

/// The largest size of an image that is believed.
const MAX_IMAGE_BYTES: u64 = 8 << 30;
/// How far the terminator of a PTX text is searched.
const MAX_TEXT_BYTES: usize = 64 << 20;

const ELF: [u8; 4] = *b"\x7fELF";
/// Magic of the header in front of a fat binary's images.
const FAT: u32 = 0xba55_ed50;
/// Magic of the wrapper that compilers emit: magic, version, pointer to the header.
const FAT_WRAPPER: u32 = 0x4662_43b1;

/// The length of an image in bytes.
///
/// # Safety
/// `image` is one that the driver has just loaded.
unsafe fn image_bytes(image: *const c_void) -> u64 {
    let bytes = image.cast::<u8>();
    // SAFETY: each format begins with four bytes, which select it, and has a header of the
    // size that is read.
    unsafe {
        let magic = bytes.cast::<[u8; 4]>().read_unaligned();
        if magic == ELF {
            let sections = bytes.add(0x28).cast::<u64>().read_unaligned();
            let size = bytes.add(0x3a).cast::<u16>().read_unaligned();
            let count = bytes.add(0x3c).cast::<u16>().read_unaligned();
            return sections.saturating_add(u64::from(size) * u64::from(count));
        }
        match u32::from_le_bytes(magic) {
            FAT => {
                let header = bytes.add(6).cast::<u16>().read_unaligned();
                let images = bytes.add(8).cast::<u64>().read_unaligned();
                images.saturating_add(u64::from(header))
            }
            FAT_WRAPPER => {
                let header = bytes.add(8).cast::<*const c_void>().read_unaligned();
                if header.is_null() {
                    0
                } else {
                    image_bytes(header)
                }
            }
            // PTX text ends with a zero.
            _ => libc::strnlen(bytes.cast(), MAX_TEXT_BYTES) as u64,
        }
    }
}

/// Charges code of `bytes` under a handle.
fn charge_code(handle: usize, bytes: impl FnOnce() -> u64) {
    catch_panic(|| {
        let governor = governor()?;
        let device = with_thread_context(|seat| Some(seat.current()?.1)).unwrap_or(0);
        governor.record_code(
            GovernedKey::Code(handle),
            device,
            bytes().min(MAX_IMAGE_BYTES),
        );
        Some(())
    });
}

/// Loads an image with the driver and charges it.
///
/// # Safety
/// The driver's function is given the program's own arguments, `image` among
/// them, and writes `into`.
unsafe fn load_image<H: Copy>(
    image: *const c_void,
    into: *mut H,
    handle: impl Fn(H) -> usize,
    load: impl FnOnce(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let result = call_driver(load);
    if result == CUresult::CUDA_SUCCESS && !image.is_null() && !into.is_null() {
        // SAFETY: the driver has just written it.
        let handle = handle(unsafe { *into });
        // SAFETY: the driver has just read it.
        charge_code(handle, || unsafe { image_bytes(image) });
    }
    result
}

/// Loads a file with the driver and charges it.
///
/// # Safety
/// As for [`load_image`]; `file` is a C string.
unsafe fn load_file<H: Copy>(
    file: *const c_char,
    into: *mut H,
    handle: impl Fn(H) -> usize,
    load: impl FnOnce(&'static Driver) -> Result<CUresult, Missing>,
) -> CUresult {
    let result = call_driver(load);
    if result == CUresult::CUDA_SUCCESS && !file.is_null() && !into.is_null() {
        // SAFETY: the driver has just read one and written the other.
        let (name, into) = unsafe { (CStr::from_ptr(file), *into) };
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let bytes = || std::fs::metadata(path).map_or(0, |data| data.len());
        charge_code(handle(into), bytes);
    }
    result
}

fn module(handle: CUmodule) -> usize {
    handle.0 as usize
}

fn library(handle: CUlibrary) -> usize {
    handle.0 as usize
}

pub(super) unsafe extern "C" fn module_load_data(
    into: *mut CUmodule,
    image: *const c_void,
) -> CUresult {
    // SAFETY: the program's own arguments.
    unsafe {
        load_image(image, into, module, |driver| {
            driver.cuModuleLoadData(into, image)
        })
    }
}

pub(super) unsafe extern "C" fn module_load_data_ex(
    into: *mut CUmodule,
    image: *const c_void,
    count: c_uint,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
) -> CUresult {
    // SAFETY: the program's own arguments.
    unsafe {
        load_image(image, into, module, |driver| {
            driver.cuModuleLoadDataEx(into, image, count, options, values)
        })
    }
}

pub(super) unsafe extern "C" fn module_load_fat_binary(
    into: *mut CUmodule,
    image: *const c_void,
) -> CUresult {
    // SAFETY: the program's own arguments.
    unsafe {
        load_image(image, into, module, |driver| {
            driver.cuModuleLoadFatBinary(into, image)
        })
    }
}

pub(super) unsafe extern "C" fn module_load(into: *mut CUmodule, file: *const c_char) -> CUresult {
    // SAFETY: the program's own arguments.
    unsafe { load_file(file, into, module, |driver| driver.cuModuleLoad(into, file)) }
}

pub(super) unsafe extern "C" fn module_unload(handle: CUmodule) -> CUresult {
    // SAFETY: the program's own argument.
    release_governed(GovernedKey::Code(module(handle)), |driver| unsafe {
        driver.cuModuleUnload(handle)
    })
}

pub(super) unsafe extern "C" fn library_load_data(
    into: *mut CUlibrary,
    image: *const c_void,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: c_uint,
    library_options: *mut CUlibraryOption,
    library_values: *mut *mut c_void,
    library_count: c_uint,
) -> CUresult {
    // SAFETY: the program's own arguments.
    unsafe {
        load_image(image, into, library, |driver| {
            driver.cuLibraryLoadData(
                into,
                image,
                options,
                values,
                count,
                library_options,
                library_values,
                library_count,
            )
        })
    }
}

pub(super) unsafe extern "C" fn library_load_from_file(
    into: *mut CUlibrary,
    file: *const c_char,
    options: *mut CUjit_option,
    values: *mut *mut c_void,
    count: c_uint,
    library_options: *mut CUlibraryOption,
    library_values: *mut *mut c_void,
    library_count: c_uint,
) -> CUresult {
    // SAFETY: the program's own arguments.
    unsafe {
        load_file(file, into, library, |driver| {
            driver.cuLibraryLoadFromFile(
                into,
                file,
                options,
                values,
                count,
                library_options,
                library_values,
                library_count,
            )
        })
    }
}

pub(super) unsafe extern "C" fn library_unload(handle: CUlibrary) -> CUresult {
    // SAFETY: the program's own argument.
    release_governed(GovernedKey::Code(library(handle)), |driver| unsafe {
        driver.cuLibraryUnload(handle)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(image: &[u8]) -> u64 {
        // SAFETY: each image has the header that its first bytes promise.
        unsafe { image_bytes(image.as_ptr().cast()) }
    }

    #[test]
    fn image_headers_determine_the_length() {
        assert_eq!(measured(b".version 8.0\n\0"), 13);
        let mut elf = [0u8; 64];
        elf[..4].copy_from_slice(&ELF);
        elf[0x28..0x30].copy_from_slice(&1000u64.to_le_bytes());
        elf[0x3a..0x3c].copy_from_slice(&64u16.to_le_bytes());
        elf[0x3c..0x3e].copy_from_slice(&3u16.to_le_bytes());
        assert_eq!(measured(&elf), 1192);
        let mut fat = [0u8; 16];
        fat[..4].copy_from_slice(&FAT.to_le_bytes());
        fat[6..8].copy_from_slice(&16u16.to_le_bytes());
        fat[8..16].copy_from_slice(&5000u64.to_le_bytes());
        assert_eq!(measured(&fat), 5016);
        let mut wrapper = [0u8; 16];
        wrapper[..4].copy_from_slice(&FAT_WRAPPER.to_le_bytes());
        wrapper[8..16].copy_from_slice(&(fat.as_ptr() as u64).to_le_bytes());
        assert_eq!(measured(&wrapper), 5016);
    }
}

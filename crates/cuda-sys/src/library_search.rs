//! Search for a shared library by its bare name, in absolute folders alone.
//!
//! An entry of `LD_LIBRARY_PATH` that is empty or relative means the current directory, or one
//! below it, to the loader: a library of any user that may write there would be loaded.

use core::ffi::CStr;
use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The loader's list of libraries.
const LOADER_CACHE: &str = "/etc/ld.so.cache";
/// A larger file is not read.
const MAX_CACHE_BYTES: u64 = 64 << 20;
/// Folders that the loader searches last.
const USUAL_FOLDERS: [&str; 4] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Whether `name` is a bare name for which the loader would search a folder that is not absolute.
pub(crate) fn is_searched_relatively(name: &Path) -> bool {
    let value = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    is_bare(name) && !value.is_empty() && entries(&value).any(|entry| !is_absolute(entry))
}

/// Names to open for the library `name`, the likeliest first: `name` itself for the loader's own
/// search, or, where that would include a folder that is not absolute, the files in those that are.
pub fn names_of_library(name: &str) -> Vec<PathBuf> {
    match is_searched_relatively(Path::new(name)) {
        true => files_of_library(name),
        false => vec![PathBuf::from(name)],
    }
}

/// Existing files of this name where the loader would search, without relative folders: in
/// `LD_LIBRARY_PATH`, in its cache, in its usual folders.
pub fn files_of_library(name: &str) -> Vec<PathBuf> {
    let value = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let listed = entries(&value).map(|entry| Path::new(OsStr::from_bytes(entry)));
    let listed = listed.filter(|folder| folder.is_absolute());
    let usual = USUAL_FOLDERS.iter().map(Path::new);
    let listed = listed.map(|folder| folder.join(name));
    let mut files: Vec<PathBuf> = listed.collect();
    files.extend(in_loader_cache(&loader_cache(), name));
    files.extend(usual.map(|folder| folder.join(name)));
    files.retain(|file| file.is_absolute() && file.exists());
    files
}

fn is_bare(name: &Path) -> bool {
    !name.as_os_str().as_bytes().contains(&b'/')
}

/// The loader separates entries by a colon or a semicolon.
fn entries(value: &OsStr) -> impl Iterator<Item = &[u8]> {
    let bytes = value.as_bytes();
    bytes.split(|byte| matches!(byte, b':' | b';'))
}

/// `$ORIGIN` and the like stand for folders of the system or of the program.
fn is_absolute(entry: &[u8]) -> bool {
    entry.starts_with(b"/") || entry.starts_with(b"$")
}

fn loader_cache() -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = File::open(LOADER_CACHE).and_then(|file| {
        let limited = file.take(MAX_CACHE_BYTES + 1).read_to_end(&mut bytes)?;
        Ok(limited as u64 <= MAX_CACHE_BYTES)
    });
    match read {
        Ok(true) => bytes,
        _ => Vec::new(),
    }
}

/// The files for a name in the loader's cache (`glibc-ld.so.cache1.1`): a
/// header of 48 bytes, then entries of 24 with the offsets of a name and a path.
fn in_loader_cache(bytes: &[u8], name: &str) -> Vec<PathBuf> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    let mut found = Vec::new();
    if !bytes.starts_with(MAGIC) {
        return found;
    }
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let text = |at: usize| CStr::from_bytes_until_nul(bytes.get(at..)?).ok();
    let count = word(20).unwrap_or(0);
    for entry in 0..count {
        let at = 48 + 24 * entry;
        let (Some(key), Some(path)) = (word(at + 4), word(at + 8)) else {
            break;
        };
        if text(key).is_some_and(|key| key.to_bytes() == name.as_bytes())
            && let Some(path) = text(path)
        {
            found.push(Path::new(OsStr::from_bytes(path.to_bytes())).to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "libcuda.so.1";

    #[test]
    fn folders_of_the_current_directory_are_recognised() {
        for (value, is_relative) in [
            ("/a:/b", false),
            ("/a;$ORIGIN/../lib", false),
            (":/a", true),
            ("/a:", true),
            ("/a::/b", true),
            ("/a;;/b", true),
            ("lib", true),
            ("/a:./lib", true),
        ] {
            let value = OsStr::new(value);
            let found = entries(value).any(|entry| !is_absolute(entry));
            assert_eq!(found, is_relative, "{value:?}");
        }
        assert!(is_bare(Path::new("libcuda.so.1")));
        assert!(!is_bare(Path::new("./libcuda.so.1")));
    }

    #[test]
    fn the_c_library_is_found_where_the_loader_has_it() {
        let files = files_of_library("libc.so.6");
        assert!(!files.is_empty());
        assert!(files.iter().all(|file| file.is_absolute()));
        assert!(files_of_library("libfercuda-none.so.1").is_empty());
    }

    #[test]
    fn the_loaders_cache_yields_the_files_of_a_library() {
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend(2u32.to_le_bytes());
        cache.resize(48, 0);
        let strings = 48 + 2 * 24;
        for (key, path) in [(0, 8), (8 + 12, 40)] {
            cache.extend(0u32.to_le_bytes());
            cache.extend((strings as u32 + key).to_le_bytes());
            cache.extend((strings as u32 + path).to_le_bytes());
            cache.extend([0; 12]);
        }
        let mut text = vec![0u8; 64];
        text[..7].copy_from_slice(b"libc.so");
        text[8..20].copy_from_slice(b"/lib/libc.so");
        text[20 + 1..33].copy_from_slice(b"ibcuda.so.1\0");
        text[20] = b'l';
        cache.extend(&text);
        // The second entry's path lies elsewhere; write it there.
        let at = strings + 40;
        cache[at..at + 16].copy_from_slice(b"/l/libcuda.so.1\0");
        assert_eq!(
            in_loader_cache(&cache, NAME),
            [PathBuf::from("/l/libcuda.so.1")]
        );
    }

    #[test]
    fn a_corrupt_cache_yields_no_files() {
        let mut cache = b"glibc-ld.so.cache1.1".to_vec();
        cache.extend(u32::MAX.to_le_bytes());
        assert!(in_loader_cache(&cache, NAME).is_empty());
        cache.extend([0xff; 400]);
        assert!(in_loader_cache(&cache, NAME).is_empty());
        assert!(in_loader_cache(b"ld.so-1.7.0", NAME).is_empty());
    }
}

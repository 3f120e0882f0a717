//! Fat binaries: selection of the best PTX among a container's images.
//!
//! Layout, little endian. Container: magic `0xBA55ED50`, version u16, header bytes u16, payload
//! bytes u64. Entry: kind u16 (1 PTX, 2 ELF), version u16, header bytes u32, stored bytes u64,
//! compressed bytes u32, (u32), minor u16, major u16, architecture u32, name offset u32, name bytes
//! u32, flags u64, (u64), bytes when decompressed u64. Flag `0x2000` is LZ4, `0x8000` Zstandard.
//!
//! Invariant: nothing is read outside the slice, and nothing larger than [`MAX_TEXT`] is made.

use std::io::Read;

pub(crate) const MAGIC: u32 = 0xBA55_ED50;
pub(crate) const HEADER: usize = 16;
const ENTRY: usize = 64;
const PTX: u16 = 1;
const ELF: u16 = 2;
const LZ4: u64 = 0x2000;
const ZSTD: u64 = 0x8000;
/// The most PTX that one entry may hold, in bytes.
pub(crate) const MAX_TEXT: usize = 1 << 28;

/// Why a container cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FatbinError {
    #[error("not a fat binary: {0}")]
    Malformed(&'static str),
    #[error(
        "the fat binary has code for {0} but no PTX; the software device needs PTX (compile with -gencode arch=compute_80,code=compute_80)"
    )]
    OnlyBinary(String),
}

fn uint(bytes: &[u8], at: usize, len: usize) -> Result<u64, FatbinError> {
    let field = bytes
        .get(at..at + len)
        .ok_or(FatbinError::Malformed("it ends inside a header"))?;
    Ok(field.iter().rev().fold(0, |n, &b| (n << 8) | u64::from(b)))
}

/// The container's whole length as its header declares it.
pub(crate) fn declared_len(header: &[u8; HEADER]) -> Result<usize, FatbinError> {
    if uint(header, 0, 4)? != u64::from(MAGIC) {
        return Err(FatbinError::Malformed("wrong magic number"));
    }
    let head = uint(header, 6, 2)?;
    let body = uint(header, 8, 8)?;
    if (head as usize) < HEADER || body > (4 << 30) {
        return Err(FatbinError::Malformed("impossible size"));
    }
    Ok((head + body) as usize)
}

/// The PTX of the newest architecture that is no newer than `sm` (such as 90).
pub(crate) fn ptx(container: &[u8], sm: u32) -> Result<String, FatbinError> {
    let header = container
        .first_chunk::<HEADER>()
        .ok_or(FatbinError::Malformed("it ends inside a header"))?;
    let len = declared_len(header)?;
    let container = container
        .get(..len)
        .ok_or(FatbinError::Malformed("it is shorter than its header says"))?;
    let mut at = uint(container, 6, 2)? as usize;
    let mut best: Option<(u32, &[u8], usize)> = None;
    let mut binaries = Vec::new();
    while at < container.len() {
        let entry = &container[at..];
        if entry.len() < ENTRY {
            return Err(FatbinError::Malformed("an entry is cut short"));
        }
        let kind = uint(entry, 0, 2)? as u16;
        let head = uint(entry, 4, 4)? as usize;
        let stored = usize::try_from(uint(entry, 8, 8)?)
            .map_err(|_| FatbinError::Malformed("impossible size"))?;
        let end = head
            .checked_add(stored)
            .filter(|&end| head >= ENTRY && end <= entry.len());
        let end = end.ok_or(FatbinError::Malformed(
            "an entry is longer than the container",
        ))?;
        let arch = uint(entry, 28, 4)? as u32;
        match kind {
            PTX if arch <= sm && best.as_ref().is_none_or(|b| b.0 < arch) => {
                best = Some((arch, &entry[..end], head))
            }
            ELF => binaries.push(format!("sm_{arch}")),
            _ => {}
        }
        at += end;
    }
    let Some((_, entry, head)) = best else {
        let what = if binaries.is_empty() {
            "nothing".to_owned()
        } else {
            binaries.join(", ")
        };
        return Err(FatbinError::OnlyBinary(what));
    };
    let flags = uint(entry, 40, 8)?;
    let payload = &entry[head..];
    let text = if flags & (LZ4 | ZSTD) == 0 {
        payload.to_vec()
    } else {
        let compressed = uint(entry, 16, 4)? as usize;
        let payload = payload
            .get(..compressed)
            .ok_or(FatbinError::Malformed("compressed data is cut short"))?;
        let expanded = usize::try_from(uint(entry, 56, 8)?).unwrap_or(usize::MAX);
        if expanded > MAX_TEXT {
            return Err(FatbinError::Malformed("its PTX is too large"));
        }
        expand(payload, expanded, flags & ZSTD != 0)?
    };
    let text = text.split(|&b| b == 0).next().unwrap_or_default().to_vec();
    String::from_utf8(text).map_err(|_| FatbinError::Malformed("its PTX is not text"))
}

fn expand(payload: &[u8], expanded: usize, zstd: bool) -> Result<Vec<u8>, FatbinError> {
    let broken = FatbinError::Malformed("compressed data is corrupt");
    if !zstd {
        // One byte decompresses to at most 255: a larger size is invalid and is not allocated.
        if expanded / 255 > payload.len() {
            return Err(broken);
        }
        return lz4_flex::block::decompress(payload, expanded).map_err(|_| broken);
    }
    let decoder = ruzstd::decoding::StreamingDecoder::new(payload).map_err(|_| broken.clone())?;
    let mut text = Vec::new();
    decoder
        .take(expanded as u64)
        .read_to_end(&mut text)
        .map_err(|_| broken)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(kind: u16, arch: u32, payload: &[u8], flags: u64, expanded: u64) -> Vec<u8> {
        let padded = payload.len().next_multiple_of(8);
        let mut e = Vec::new();
        e.extend(kind.to_le_bytes());
        e.extend(0x101u16.to_le_bytes());
        e.extend(64u32.to_le_bytes());
        e.extend((padded as u64).to_le_bytes());
        e.extend((payload.len() as u32).to_le_bytes());
        e.extend([0; 8]);
        e.extend(arch.to_le_bytes());
        e.extend([0; 8]);
        e.extend(flags.to_le_bytes());
        e.extend([0; 8]);
        e.extend(expanded.to_le_bytes());
        e.extend(payload);
        e.resize(64 + padded, 0);
        e
    }

    fn container(entries: &[Vec<u8>]) -> Vec<u8> {
        let body = entries.concat();
        let mut c = MAGIC.to_le_bytes().to_vec();
        c.extend(1u16.to_le_bytes());
        c.extend(16u16.to_le_bytes());
        c.extend((body.len() as u64).to_le_bytes());
        c.extend(body);
        c
    }

    #[test]
    fn the_newest_ptx_that_fits_is_taken() {
        let c = container(&[
            entry(ELF, 90, b"\x7fELF", 0, 0),
            entry(PTX, 80, b"old\0", 0, 0),
            entry(PTX, 90, b"fits\0", 0, 0),
            entry(PTX, 100, b"new\0", 0, 0),
        ]);
        assert_eq!(ptx(&c, 90).unwrap(), "fits");
    }

    #[test]
    fn lz4_payloads_are_expanded() {
        let text = ".version 8.0 ".repeat(100);
        let packed = lz4_flex::block::compress(text.as_bytes());
        let c = container(&[entry(PTX, 80, &packed, LZ4, text.len() as u64)]);
        assert_eq!(ptx(&c, 90).unwrap(), text);
    }

    #[test]
    fn binaries_alone_are_named() {
        let c = container(&[entry(ELF, 86, b"\x7fELF", 0, 0)]);
        assert_eq!(
            ptx(&c, 90),
            Err(FatbinError::OnlyBinary("sm_86".to_owned()))
        );
    }

    #[test]
    fn every_truncation_is_an_error() {
        let text = "text ".repeat(50);
        let packed = lz4_flex::block::compress(text.as_bytes());
        let c = container(&[entry(PTX, 80, &packed, LZ4, text.len() as u64)]);
        for len in 0..c.len() {
            assert!(ptx(&c[..len], 90).is_err(), "{len}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_grow(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
            kind in 0u16..3, flags in prop_oneof![Just(0), Just(LZ4), Just(ZSTD), any::<u64>()], claimed in any::<u32>(),
        ) {
            let c = container(&[entry(kind, 80, &bytes, flags, u64::from(claimed))]);
            ptx(&c, 90).ok();
            bytes.splice(0..0, MAGIC.to_le_bytes());
            ptx(&bytes, 90).ok();
        }
    }
}

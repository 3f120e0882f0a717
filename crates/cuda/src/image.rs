//! Validation of module images before the driver reads them.
//!
//! The driver takes an image by its address alone and trusts its content. A truncated file would
//! have it read past the end, so every length known to us is checked against the slice here. That
//! finds accidents, not malice: NVIDIA's driver can be crashed by modified machine code, so a
//! caller that makes an image of machine code vouches for its origin.
//!
//! Invariant: in an image that passes, no length of a header, section, segment or entry reaches
//! outside it. Elsewhere: loading (`module`).

use std::borrow::Cow;
use std::ffi::CString;

use fercuda_nvrtc::CompiledProgram;

use crate::error::{ByteSize, ImageError};

/// The input of a module: PTX text, which the driver compiles and which may contain anything, or
/// machine code, which it trusts.
///
/// ```compile_fail,E0133
/// let code: &[u8] = &std::fs::read("kernel.cubin")?;
/// fercuda_cuda::Image::binary(code)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Image<'a>(ImageKind<'a>);

#[derive(Clone, Debug)]
enum ImageKind<'a> {
    Ptx(Cow<'a, str>),
    /// An ELF image for one architecture.
    Cubin(Cow<'a, [u8]>),
    /// Several images in one container.
    Fatbin(Cow<'a, [u8]>),
}

impl<'a> Image<'a> {
    /// PTX text.
    pub fn ptx(text: impl Into<Cow<'a, str>>) -> Self {
        Self(ImageKind::Ptx(text.into()))
    }

    /// A cubin (as `nvcc -cubin` and NVRTC produce), a fatbin (`nvcc -fatbin`) or PTX text,
    /// distinguished by the first bytes.
    ///
    /// # Errors
    /// [`ImageError`] if the bytes begin like none of the three, or if a length in them reaches
    /// past their end.
    ///
    /// # Safety
    /// Machine code is unmodified compiler output. The software device reads any bytes; NVIDIA's
    /// driver trusts them.
    pub unsafe fn binary(bytes: impl Into<Cow<'a, [u8]>>) -> Result<Self, ImageError> {
        Self::of(bytes.into())
    }

    /// Whether it is text, which later devices accept too.
    pub fn is_ptx(&self) -> bool {
        matches!(self.0, ImageKind::Ptx(_))
    }

    /// Machine code of a known origin.
    pub(crate) fn trusted(code: &'a [u8]) -> Self {
        Self(ImageKind::Cubin(code.into()))
    }

    fn of(bytes: Cow<'a, [u8]>) -> Result<Self, ImageError> {
        if bytes.starts_with(ELF_MAGIC) {
            check_elf(&bytes)?;
            return Ok(Self(ImageKind::Cubin(bytes)));
        }
        if bytes.starts_with(&FATBIN_MAGIC.to_le_bytes()) {
            check_fatbin(&bytes)?;
            return Ok(Self(ImageKind::Fatbin(bytes)));
        }
        let text = match bytes {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).ok(),
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).ok(),
        };
        match text {
            Some(text) => Ok(Self::ptx(text)),
            None => Err(ImageError {
                kind: "module",
                reason: "it begins neither as an ELF file nor as a fatbin, and it is not text"
                    .into(),
            }),
        }
    }

    /// A short description for messages.
    pub(crate) fn describe(&self) -> String {
        let (kind, len) = match &self.0 {
            ImageKind::Ptx(text) => ("PTX", text.len()),
            ImageKind::Cubin(bytes) => ("cubin", bytes.len()),
            ImageKind::Fatbin(bytes) => ("fatbin", bytes.len()),
        };
        format!("{kind}, {}", ByteSize(len as u64))
    }

    /// A validated copy for the driver, aligned to 8 bytes, text terminated by a zero byte.
    pub(crate) fn checked(&self) -> Result<CheckedImage, ImageError> {
        match &self.0 {
            ImageKind::Ptx(text) => {
                let text = text.trim_end_matches('\0');
                if let Some(at) = text.find('\0') {
                    return Err(ImageError {
                        kind: "PTX",
                        reason: format!("zero byte at {at}"),
                    });
                }
                // A driver determines the kind by the first bytes, not by the caller's claim.
                if text.as_bytes().starts_with(ELF_MAGIC) {
                    return Err(ImageError {
                        kind: "PTX",
                        reason: "it begins as an ELF file".into(),
                    });
                }
                // The search above has excluded every zero byte that `new` could find.
                let text = CString::new(text).map_err(|error| ImageError {
                    kind: "PTX",
                    reason: error.to_string(),
                })?;
                Ok(CheckedImage::Text(text))
            }
            ImageKind::Cubin(bytes) => {
                check_elf(bytes)?;
                Ok(CheckedImage::Words(aligned(bytes)))
            }
            ImageKind::Fatbin(bytes) => {
                check_fatbin(bytes)?;
                Ok(CheckedImage::Words(aligned(bytes)))
            }
        }
    }
}

impl<'a> From<&'a CompiledProgram> for Image<'a> {
    /// What NVRTC has compiled, which is machine code of a known origin.
    fn from(compiled: &'a CompiledProgram) -> Self {
        Self(match compiled.ptx() {
            Some(ptx) => ImageKind::Ptx(ptx.into()),
            None => ImageKind::Cubin(compiled.code().into()),
        })
    }
}

/// An image that the driver may read.
pub(crate) enum CheckedImage {
    Text(CString),
    Words(Vec<u64>),
}

impl CheckedImage {
    pub(crate) fn as_ptr(&self) -> *const std::ffi::c_void {
        match self {
            Self::Text(text) => text.as_ptr().cast(),
            Self::Words(words) => words.as_ptr().cast(),
        }
    }
}

fn aligned(bytes: &[u8]) -> Vec<u64> {
    // One extra word, so that a reader of whole words stays inside.
    let mut words = vec![0u64; bytes.len().div_ceil(8) + 1];
    bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}

const ELF_MAGIC: &[u8] = b"\x7fELF";
const FATBIN_MAGIC: u32 = 0xBA55_ED50;

/// Reader of little-endian fields, each checked against the end.
struct BinaryFields<'a> {
    bytes: &'a [u8],
    kind: &'static str,
}

impl BinaryFields<'_> {
    fn error(&self, reason: String) -> ImageError {
        ImageError {
            kind: self.kind,
            reason,
        }
    }

    fn at<const N: usize>(&self, offset: u64, what: &str) -> Result<[u8; N], ImageError> {
        usize::try_from(offset)
            .ok()
            .and_then(|offset| self.bytes.get(offset..)?.first_chunk::<N>().copied())
            .ok_or_else(|| {
                self.error(format!(
                    "{what} at byte {offset} is past the end at {}",
                    self.bytes.len()
                ))
            })
    }

    fn u16(&self, offset: u64, what: &str) -> Result<u64, ImageError> {
        Ok(u16::from_le_bytes(self.at(offset, what)?).into())
    }

    fn u32(&self, offset: u64, what: &str) -> Result<u64, ImageError> {
        Ok(u32::from_le_bytes(self.at(offset, what)?).into())
    }

    fn u64(&self, offset: u64, what: &str) -> Result<u64, ImageError> {
        Ok(u64::from_le_bytes(self.at(offset, what)?))
    }

    /// Whether `len` bytes from `offset` are inside.
    fn range(&self, offset: u64, len: u64, what: &str) -> Result<(), ImageError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes.len() as u64 => Ok(()),
            _ => Err(self.error(format!(
                "{what} takes {len} bytes from {offset}, the file ends at {}",
                self.bytes.len()
            ))),
        }
    }
}

/// Checks the header and the section and program tables of a 64-bit ELF file.
fn check_elf(bytes: &[u8]) -> Result<(), ImageError> {
    let elf = BinaryFields {
        bytes,
        kind: "cubin",
    };
    if !bytes.starts_with(ELF_MAGIC) {
        return Err(elf.error("it does not begin as an ELF file".into()));
    }
    let [class, data] = elf.at(4, "the ELF class")?;
    if (class, data) != (2, 1) {
        return Err(elf.error("it is not a 64-bit little-endian ELF file".into()));
    }
    let sections = elf.u64(40, "the section table's offset")?;
    let section_size = elf.u16(58, "the section header's size")?;
    let section_count = elf.u16(60, "the number of sections")?;
    let segments = elf.u64(32, "the program table's offset")?;
    let segment_size = elf.u16(54, "the program header's size")?;
    let segment_count = elf.u16(56, "the number of segments")?;
    if section_count == 0 || section_size < 64 {
        return Err(elf.error("it has no section table".into()));
    }
    elf.range(sections, section_size * section_count, "the section table")?;
    for index in 0..section_count {
        let header = sections + index * section_size;
        const NO_BITS: u64 = 8;
        if elf.u32(header + 4, "a section's type")? == NO_BITS {
            continue;
        }
        let offset = elf.u64(header + 24, "a section's offset")?;
        let size = elf.u64(header + 32, "a section's size")?;
        elf.range(offset, size, &format!("section {index}"))?;
    }
    if segment_count > 0 {
        if segment_size < 56 {
            return Err(elf.error(format!("its program headers have {segment_size} bytes")));
        }
        elf.range(segments, segment_size * segment_count, "the program table")?;
        for index in 0..segment_count {
            let header = segments + index * segment_size;
            let offset = elf.u64(header + 8, "a segment's offset")?;
            let size = elf.u64(header + 32, "a segment's size")?;
            elf.range(offset, size, &format!("segment {index}"))?;
        }
    }
    Ok(())
}

/// Checks the header of a fatbin and of each entry in it.
///
/// The header is a magic number, a version (u16), its own size (u16) and the
/// size of what follows (u64). An entry begins with its kind and version
/// (u16 each), the size of its header (u32) and of its payload (u64).
fn check_fatbin(bytes: &[u8]) -> Result<(), ImageError> {
    let fatbin = BinaryFields {
        bytes,
        kind: "fatbin",
    };
    if fatbin.u32(0, "the magic number")? != u64::from(FATBIN_MAGIC) {
        return Err(fatbin.error("it does not begin as a fatbin".into()));
    }
    let header = fatbin.u16(6, "the header's size")?;
    if header < 16 {
        return Err(fatbin.error(format!("its header has {header} bytes, fewer than 16")));
    }
    let size = fatbin.u64(8, "the content's size")?;
    fatbin.range(header, size, "the content")?;
    let end = header + size;
    let mut at = header;
    let mut entries = 0;
    while at < end {
        let entry_header = fatbin.u32(at + 4, "an entry's header size")?;
        let payload = fatbin.u64(at + 8, "an entry's payload size")?;
        if entry_header < 16 {
            return Err(fatbin.error(format!(
                "the entry at {at} has a header of {entry_header} bytes"
            )));
        }
        let next = entry_header
            .checked_add(payload)
            .and_then(|len| at.checked_add(len))
            .filter(|next| *next <= end)
            .ok_or_else(|| {
                fatbin.error(format!(
                    "the entry at {at} takes {entry_header} + {payload} bytes, the content ends at {end}"
                ))
            })?;
        at = next;
        entries += 1;
    }
    if entries == 0 {
        return Err(fatbin.error("it has no entries".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fatbin(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(FATBIN_MAGIC.to_le_bytes());
        bytes.extend(1u16.to_le_bytes());
        bytes.extend(16u16.to_le_bytes());
        bytes.extend((16 + payload.len() as u64).to_le_bytes());
        bytes.extend(1u16.to_le_bytes());
        bytes.extend(0x101u16.to_le_bytes());
        bytes.extend(16u32.to_le_bytes());
        bytes.extend((payload.len() as u64).to_le_bytes());
        bytes.extend(payload);
        bytes
    }

    fn elf() -> Vec<u8> {
        let mut bytes = vec![0u8; 64 + 2 * 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[40..48].copy_from_slice(&64u64.to_le_bytes());
        bytes[58..60].copy_from_slice(&64u16.to_le_bytes());
        bytes[60..62].copy_from_slice(&2u16.to_le_bytes());
        let second = 128;
        bytes[second + 4] = 1;
        bytes[second + 24..second + 32].copy_from_slice(&192u64.to_le_bytes());
        bytes[second + 32..second + 40].copy_from_slice(&8u64.to_le_bytes());
        bytes.extend([7; 8]);
        bytes
    }

    #[test]
    fn every_truncation_of_a_fatbin_is_an_error() {
        let whole = fatbin(&[5; 40]);
        assert_eq!(check_fatbin(&whole), Ok(()));
        for len in 0..whole.len() {
            let error = check_fatbin(&whole[..len]).expect_err("it was truncated");
            assert!(error.to_string().contains("fatbin is corrupt"), "{error}");
        }
    }

    #[test]
    fn every_truncation_of_a_cubin_is_an_error() {
        let whole = elf();
        assert_eq!(check_elf(&whole), Ok(()));
        for len in 0..whole.len() {
            assert!(
                check_elf(&whole[..len]).is_err(),
                "{len} of {} bytes",
                whole.len()
            );
        }
    }

    #[test]
    fn lengths_that_wrap_around_are_errors() {
        let mut bytes = fatbin(&[1; 8]);
        bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(check_fatbin(&bytes).is_err());
        let mut bytes = fatbin(&[1; 8]);
        bytes[24..32].copy_from_slice(&(u64::MAX - 8).to_le_bytes());
        assert!(check_fatbin(&bytes).is_err());
        let mut bytes = elf();
        bytes[128 + 24..128 + 32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(check_elf(&bytes).is_err());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_do_not_panic_the_validation(bytes: Vec<u8>) {
            drop(Image::of(bytes.as_slice().into()).and_then(|image| image.checked()));
            for start in [&b"\x7fELF\x02\x01"[..], b"\x50\xed\x55\xba\x01\x00\x10\x00"] {
                let bytes = [start, &bytes].concat();
                drop(Image::of(bytes.into()).and_then(|image| image.checked()));
            }
        }

        #[test]
        fn every_length_of_a_valid_image_is_inside(
            payload: Vec<u8>,
            changes: Vec<(proptest::sample::Index, u8)>,
        ) {
            for mut bytes in [fatbin(&payload), elf()] {
                for (at, byte) in &changes {
                    let at = at.index(bytes.len());
                    bytes[at] = *byte;
                }
                // An image that passes still passes with more bytes appended: nothing was read from
                // outside.
                let verdict = Image::of(bytes.as_slice().into())
                    .and_then(|image| image.checked())
                    .is_ok();
                if verdict && !bytes.is_ascii() {
                    bytes.extend([0xff; 64]);
                    proptest::prop_assert!(
                        Image::of(bytes.as_slice().into())
                            .and_then(|image| image.checked())
                            .is_ok()
                    );
                }
            }
        }
    }

    #[test]
    fn the_first_bytes_determine_the_kind() {
        let kind = |bytes: &[u8]| Image::of(bytes.to_vec().into()).map(|image| image.0);
        assert!(matches!(kind(&elf()), Ok(ImageKind::Cubin(_))));
        assert!(matches!(kind(&fatbin(&[0; 8])), Ok(ImageKind::Fatbin(_))));
        assert!(matches!(kind(b".version 9.0"), Ok(ImageKind::Ptx(_))));
        assert!(kind(b"\xff\xfe\x00").is_err());
    }

    #[test]
    fn a_zero_byte_inside_ptx_is_an_error_and_one_at_its_end_is_not() {
        assert!(Image::ptx(".version 9.0\0").checked().is_ok());
        assert!(Image::ptx(".version\09.0").checked().is_err());
    }

    #[test]
    fn machine_code_is_not_accepted_as_ptx() {
        assert!(Image::ptx("\x7fELF\x02\x01\x01").checked().is_err());
    }
}

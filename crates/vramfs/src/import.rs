//! A borrowed file, the device memory of which is mapped into this process, without a copy.
//!
//! Invariants: the mapped memory stays the file's until this is dropped; when the filesystem is
//! notified that the borrower is done, the device has done all work that was queued with the
//! memory. A loan message that is not understood is dropped, and the loan with it. Elsewhere:
//! lending, and when a loan ends (`export`).

use std::io::{ErrorKind, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::Builder;
use std::time::Duration;

use bytemuck::Zeroable as _;
use fercuda_cuda::{
    Context, DeviceBuffer, DeviceSlice, DeviceSliceMut, PhysicalMemory, VirtualRange,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::control::{Control, peer};
use crate::error::{Error, Result};
pub use crate::export::FileSegment;
use crate::export::{
    DONE, LoanHeader, MAGIC, MemoryPart, RETURNED, describe_refusal, send_message, socket_name,
};
use crate::layout::DATA_BYTES;
use crate::space::BLOCKS_MAX;

/// How often a dropped import checks whether the context can be synchronized.
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of parts, of 256 MiB each.
const MAX_PARTS: u64 = 1 << 16;

/// A file that is lent to this process, and is not mapped.
#[derive(Debug)]
pub struct Export {
    at: PathBuf,
    link: UnixStream,
    head: LoanHeader,
    parts: Vec<(MemoryPart, OwnedFd)>,
    segments: Vec<FileSegment>,
    writes: bool,
}

impl Export {
    /// Borrows the file at `at`, to read it, or to write to it too. While it is borrowed it cannot
    /// be changed by system calls, which fail with `EBUSY`; while it is borrowed to write, it
    /// cannot be read by them either. All of the file was verified before.
    ///
    /// # Errors
    /// [`Error::Mount`]: it is not a file in such a filesystem, this user may not, another process
    /// writes to it, or it is to be written to and does not consist of whole blocks of its own.
    pub fn of(at: &Path, writes: bool) -> Result<Self> {
        let failed = |why: String| Error::Mount {
            at: at.to_owned(),
            why,
        };
        let io_error = |error: std::io::Error| failed(error.to_string());
        let mut bytes = [0; 16];
        getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|error| failed(error.to_string()))?;
        let number: [u64; 2] = bytemuck::cast(bytes);
        let address = SocketAddr::from_abstract_name(socket_name(number)).map_err(io_error)?;
        let listener = UnixListener::bind_addr(&address).map_err(io_error)?;
        let user = Control::open(at)?.export(number, writes)?;
        // The daemon has connected already, unless another user that saw the name was faster.
        let link = loop {
            let (link, _) = listener.accept().map_err(io_error)?;
            let (_, is) = peer(&link).map_err(|error| failed(error.to_string()))?;
            if is == user {
                break link;
            }
        };
        let mut it = Self {
            at: at.to_owned(),
            link,
            head: LoanHeader::zeroed(),
            parts: Vec::new(),
            segments: Vec::new(),
            writes,
        };
        it.receive()
            .map_err(|error| match error.kind() {
                ErrorKind::Other => failed(error.to_string()),
                ErrorKind::UnexpectedEof => failed("its daemon has ended".to_owned()),
                _ => failed(format!("its daemon sent an incomplete loan: {error}")),
            })
            .map(|()| it)
    }

    fn receive(&mut self) -> std::io::Result<()> {
        let mut link = &self.link;
        link.read_exact(bytemuck::bytes_of_mut(&mut self.head))?;
        let head = self.head;
        let wrong =
            |what: &str| std::io::Error::other(format!("its daemon sent an invalid loan: {what}"));
        if head.magic != MAGIC {
            return Err(wrong("the daemon is of another version"));
        }
        if head.error != 0 {
            return Err(std::io::Error::other(describe_refusal(head.error)));
        }
        let pages = u64::from(BLOCKS_MAX) * 32;
        if head.parts > MAX_PARTS || head.segments > pages || head.block_bytes < DATA_BYTES as u64 {
            return Err(wrong("more parts or segments than there can be"));
        }
        let mut end = 0;
        for _ in 0..head.parts {
            let (part, memory) = receive_part(link)?;
            if part.at < end || part.bytes == 0 || part.at.checked_add(part.bytes).is_none() {
                return Err(wrong("a range of memory"));
            }
            end = part.at + part.bytes;
            self.parts.push((part, memory));
        }
        let mut behind = 0;
        for _ in 0..head.segments {
            let mut it = FileSegment::zeroed();
            link.read_exact(bytemuck::bytes_of_mut(&mut it))?;
            let is_within = |(part, _): &(MemoryPart, OwnedFd)| {
                part.at <= it.at && it.at < part.at + part.bytes
            };
            let ends = it
                .offset
                .checked_add(it.bytes)
                .filter(|end| *end <= head.size);
            let last = it.at.checked_add(it.bytes);
            // A segment may span several adjacent parts.
            let is_mapped = self.parts.iter().position(is_within).is_some_and(|first| {
                let mut reach = self.parts[first].0.at;
                for (part, _) in &self.parts[first..] {
                    if part.at != reach {
                        break;
                    }
                    reach += part.bytes;
                }
                last.is_some_and(|last| last <= reach)
            });
            if it.offset < behind || it.bytes == 0 || ends.is_none() || !is_mapped {
                return Err(wrong("where the file's bytes are"));
            }
            behind = it.offset + it.bytes;
            self.segments.push(it);
        }
        Ok(())
    }

    /// UUID of the device that has the memory.
    pub fn device(&self) -> [u8; 16] {
        self.head.device
    }

    /// The file's size in bytes, including holes.
    pub fn size(&self) -> u64 {
        self.head.size
    }

    /// Where the file's bytes are, in file order, in bytes from the first byte of the first block.
    /// The ranges between segments are holes.
    pub fn segments(&self) -> &[FileSegment] {
        &self.segments
    }

    /// Distance of the first bytes of adjacent blocks; 128 KiB of it are data.
    pub fn block_bytes(&self) -> u64 {
        self.head.block_bytes
    }

    /// Bytes of memory that are mapped for it, including other files'.
    pub fn mapped_bytes(&self) -> u64 {
        self.parts.iter().map(|(part, _)| part.bytes).sum()
    }

    /// Maps the memory in a context of its device.
    ///
    /// # Errors
    /// [`Error::Mount`] for another device; the driver's errors.
    pub fn map(self, context: &Context) -> Result<Import> {
        if context.device().uuid()? != self.head.device {
            return Err(Error::Mount {
                at: self.at.clone(),
                why: format!(
                    "it is in another device's memory than {}'s\ntry: the device that the filesystem is on (fercuda vram stat)",
                    context.device()
                ),
            });
        }
        let first = self.parts.first().map_or(0, |(part, _)| part.at);
        let end = self
            .parts
            .last()
            .map_or(0, |(part, _)| part.at + part.bytes);
        let mut memory = Vec::new();
        let mut address = 0;
        if end > first {
            let bytes = usize::try_from(end - first).unwrap_or(usize::MAX);
            let range = VirtualRange::reserve(context, bytes)?;
            address = range.address().0;
            for (part, fd) in &self.parts {
                let physical = PhysicalMemory::import(context, fd.as_fd(), part.bytes as usize)?;
                let at = (part.at - first) as usize;
                memory.push(range.map(at, &physical, &[context.device()])?);
            }
        }
        let mapped = |it: &FileSegment| FileSegment {
            at: address + (it.at - first),
            ..*it
        };
        Ok(Import {
            segments: self.segments.iter().map(mapped).collect(),
            memory,
            context: context.clone(),
            export: Some(self),
        })
    }

    /// Returns the file, and waits until the filesystem has taken it back.
    fn give_back(self) -> Result<()> {
        let mut answer = [0];
        let sent = send_message(&self.link, &[DONE]);
        let received = sent.and_then(|()| (&self.link).read_exact(&mut answer));
        match (received, answer) {
            (Ok(()), [RETURNED]) => Ok(()),
            // Only the connection is lost: nothing was written.
            (Err(_), _) if !self.writes => Ok(()),
            (Err(error), _) => Err(self.failed(format!(
                "its daemon has ended, and the files are lost: {error}"
            ))),
            (Ok(()), _) => Err(self.failed(
                "the blocks written to could not be given valid parity: the device has failed"
                    .to_owned(),
            )),
        }
    }

    fn failed(&self, why: String) -> Error {
        Error::Mount {
            at: self.at.clone(),
            why,
        }
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        // `Import` waits for the device first. If the daemon was notified already, this fails,
        // which is fine.
        send_message(&self.link, &[DONE]).unwrap_or_default();
    }
}

fn receive_part(mut link: &UnixStream) -> std::io::Result<(MemoryPart, OwnedFd)> {
    let mut part = MemoryPart::zeroed();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let bytes = bytemuck::bytes_of_mut(&mut part);
    let received = recvmsg(
        link,
        &mut [IoSliceMut::new(bytes)],
        &mut with,
        RecvFlags::CMSG_CLOEXEC,
    )?
    .bytes;
    if received == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    let descriptors = with.drain().find_map(|it| match it {
        RecvAncillaryMessage::ScmRights(mut all) => all.next(),
        _ => None,
    });
    let memory = descriptors.ok_or(ErrorKind::InvalidData)?;
    link.read_exact(&mut bytemuck::bytes_of_mut(&mut part)[received..])?;
    Ok((part, memory))
}

/// A borrowed file's memory, mapped into this process.
#[derive(Debug)]
pub struct Import {
    segments: Vec<FileSegment>,
    /// The mappings, adjacent except where no segment lies between.
    memory: Vec<DeviceBuffer<u8>>,
    context: Context,
    /// `None` once it was given back.
    export: Option<Export>,
}

impl Import {
    /// Borrows the file at `at` and maps it: [`Export::of`], [`Export::map`].
    ///
    /// # Errors
    /// Those of the two.
    pub fn open(at: &Path, context: &Context, writes: bool) -> Result<Self> {
        Export::of(at, writes)?.map(context)
    }

    /// The file's size in bytes, including holes.
    pub fn size(&self) -> u64 {
        self.export.as_ref().map_or(0, Export::size)
    }

    /// Where the file's bytes are, in file order: `at` is an address on the device. The ranges
    /// between segments are holes.
    pub fn segments(&self) -> &[FileSegment] {
        &self.segments
    }

    /// The `len` bytes of the file from `offset` on, in place, if they are contiguous in one part
    /// of memory.
    ///
    /// # Errors
    /// [`Error::Apart`] if they are not.
    pub fn slice(&self, offset: u64, len: u64) -> Result<DeviceSlice<'_, u8>> {
        let (at, range) = self.place(offset, len)?;
        Ok(self.memory[at].slice(range)?)
    }

    /// The same, writable, if the file was borrowed to write.
    ///
    /// # Errors
    /// As [`Import::slice`]; [`Error::ReadOnly`].
    pub fn slice_mut(&mut self, offset: u64, len: u64) -> Result<DeviceSliceMut<'_, u8>> {
        if !self.export.as_ref().is_some_and(|it| it.writes) {
            return Err(Error::ReadOnly);
        }
        let (at, range) = self.place(offset, len)?;
        Ok(self.memory[at].slice_mut(range)?)
    }

    /// Index of the mapping that has these bytes, and their range in it.
    fn place(&self, offset: u64, len: u64) -> Result<(usize, Range<usize>)> {
        let apart = Error::Apart { offset, len };
        let end = offset.checked_add(len);
        let behind = self.segments.partition_point(|it| it.offset <= offset);
        let segment = self.segments[..behind].last();
        let segment = segment.filter(|it| end.is_some_and(|end| end <= it.offset + it.bytes));
        let Some(segment) = segment else {
            return Err(apart);
        };
        let address = segment.at + (offset - segment.offset);
        let found = self.memory.iter().enumerate().find_map(|(at, piece)| {
            let first = address.checked_sub(piece.address().0)?;
            let range = first as usize..(first + len) as usize;
            (range.end <= piece.len()).then_some((at, range))
        });
        found.ok_or(apart)
    }

    /// The address of each 128 KiB chunk of the file, 0 for a hole. `None` if a chunk is in several
    /// pieces, or has a hole beside data, or if the host has not enough memory for the addresses.
    /// So a kernel finds byte `i` at `chunks[i >> 17] + (i & 131071)`.
    pub fn chunks(&self) -> Option<Vec<u64>> {
        chunks(&self.segments, self.size())
    }

    /// The distance of adjacent chunks, if it is the same for all and no chunk is a hole or in
    /// pieces: then the whole file is one array of rows of 128 KiB, the last of which may be
    /// shorter.
    pub fn stride_bytes(&self) -> Option<u64> {
        let held: u64 = self.segments.iter().map(|it| it.bytes).sum();
        if held != self.size() {
            return None;
        }
        let chunks = self.chunks()?;
        let first = *chunks.first()?;
        let stride = match chunks.get(1) {
            Some(second) => second.checked_sub(first)?,
            None => DATA_BYTES as u64,
        };
        let is_even = |at: usize| chunks[at] == first.wrapping_add(at as u64 * stride);
        let is_array = stride >= DATA_BYTES as u64;
        (is_array && (0..chunks.len()).all(is_even)).then_some(stride)
    }

    /// The context that the memory is mapped in.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Waits for all work that the device was given in this context, and gives the file back. Then
    /// it can be used again, with what was written.
    ///
    /// # Errors
    /// The device's errors, after which the file is given back when this process ends;
    /// [`Error::Mount`] if the filesystem could not keep what was written.
    pub fn close(mut self) -> Result<()> {
        self.context.synchronize()?;
        self.memory.clear();
        self.export.take().map_or(Ok(()), Export::give_back)
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        let Some(export) = self.export.take() else {
            return;
        };
        let (context, memory) = (self.context.clone(), std::mem::take(&mut self.memory));
        let mut end = PendingReturn {
            context,
            memory,
            export: Some(export),
        };
        if end.try_return() {
            return;
        }
        // The context cannot be synchronized: a stream is being captured, or this is a host
        // callback. If no thread can be started, the file is given back when the process ends.
        let wait = move || {
            while !end.try_return() {
                std::thread::sleep(RETRY_INTERVAL);
            }
        };
        let waits = Builder::new().name("vramfs-import".to_owned()).spawn(wait);
        waits.map(drop).unwrap_or_default();
    }
}

/// See [`Import::chunks`].
fn chunks(segments: &[FileSegment], size: u64) -> Option<Vec<u64>> {
    let chunk = DATA_BYTES as u64;
    let count = usize::try_from(size.div_ceil(chunk)).ok()?;
    let mut all = Vec::new();
    all.try_reserve_exact(count).ok()?;
    all.resize(count, 0);
    let mut reach = 0;
    let is_border = |at: u64| at.is_multiple_of(chunk) || at == size;
    for it in segments {
        // The memory around a segment belongs to other files, so holes are whole chunks.
        if it.offset != reach && !(is_border(reach) && is_border(it.offset)) {
            return None;
        }
        reach = it.offset + it.bytes;
        for number in it.offset / chunk..=(reach - 1) / chunk {
            let address = it.at.wrapping_sub(it.offset).wrapping_add(number * chunk);
            let place = &mut all[number as usize];
            if *place != 0 && *place != address {
                return None;
            }
            *place = address;
        }
    }
    is_border(reach).then_some(all)
}

/// A mapped file to be given back when the device is done. If this is dropped before, the daemon is
/// not notified; it then takes the file back when the process ends.
struct PendingReturn {
    context: Context,
    memory: Vec<DeviceBuffer<u8>>,
    export: Option<Export>,
}

impl PendingReturn {
    /// Gives the file back if the device is done; whether there is nothing more to wait for.
    fn try_return(&mut self) -> bool {
        match self.context.try_synchronize() {
            Ok(()) => {
                self.memory.clear();
                self.export = None;
                true
            }
            // Without that driver function the end of the work cannot be detected without blocking.
            Err(fercuda_cuda::Error::Missing(_)) => true,
            Err(error) => !error.is_refusal(),
        }
    }
}

impl Drop for PendingReturn {
    fn drop(&mut self) {
        if let Some(export) = &self.export {
            // Keeps the drop of `export` from reporting that it is done.
            export.link.shutdown(Shutdown::Write).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_has_an_address_only_if_it_is_complete_and_contiguous() {
        const CHUNK: u64 = DATA_BYTES as u64;
        let segment = |offset, bytes, at| FileSegment { offset, bytes, at };
        let first = segment(0, CHUNK, 1 << 20);
        for (segments, size, expected) in [
            (vec![first], CHUNK, Some(vec![1 << 20])),
            // A hole of a whole chunk, before, between and behind; and the last chunk is as long as
            // the file.
            (vec![first], 3 * CHUNK, Some(vec![1 << 20, 0, 0])),
            (
                vec![first, segment(2 * CHUNK, 5, 77)],
                2 * CHUNK + 5,
                Some(vec![1 << 20, 0, 77]),
            ),
            (
                vec![segment(CHUNK, CHUNK, 99)],
                2 * CHUNK,
                Some(vec![0, 99]),
            ),
            (
                vec![segment(0, 4096, 50), segment(4096, CHUNK - 4096, 50 + 4096)],
                CHUNK,
                Some(vec![50]),
            ),
            (vec![], CHUNK + 1, Some(vec![0, 0])),
            (vec![], 0, Some(vec![])),
            // A hole at its beginning, at its end and in its middle; or two places.
            (vec![segment(4096, CHUNK - 4096, 4096)], CHUNK, None),
            (vec![segment(0, 4096, 1 << 20)], CHUNK, None),
            (
                vec![segment(0, 4096, 0), segment(8192, CHUNK - 8192, 8192)],
                CHUNK,
                None,
            ),
            (
                vec![segment(0, 4096, 50), segment(4096, CHUNK - 4096, 9)],
                CHUNK,
                None,
            ),
            (
                vec![segment(CHUNK + 4096, CHUNK - 4096, 7)],
                2 * CHUNK,
                None,
            ),
        ] {
            assert_eq!(chunks(&segments, size), expected, "{segments:?} of {size}");
        }
        // More addresses than the host has memory for.
        assert_eq!(chunks(&[], 1 << 62), None);
    }
}

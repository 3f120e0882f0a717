//! Verification of a snapshot: its manifest, its checksums and the space that it needs.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, anyhow, bail};
use fercuda_vramfs::layout::PAGE_BYTES;
use fercuda_vramfs::tree::METADATA_OVERHEAD_BYTES;
use sha2::{Digest as _, Sha256};
use tar::{Archive, EntryType};

use super::format::{BUFFER_BYTES, MANIFEST, MANIFEST_HEADER, hex, sha256_hex};
use super::members::{for_each_member, link_target, may_set, read_sparse_map};

/// Result of verifying a snapshot.
pub(super) struct VerifiedSnapshot {
    /// Offset of the manifest.
    pub(super) end: u64,
    pub(super) needs: SpaceNeeds,
}

/// Upper bound of the space that its members take: zeros may take no pages.
#[derive(Default)]
pub(super) struct SpaceNeeds {
    /// Data of files.
    pub(super) data_bytes: u64,
    pub(super) pages: u64,
    /// Including further names of files, each of which counts as one.
    pub(super) inodes: u64,
    /// Names, symbolic link targets and attributes.
    pub(super) metadata_bytes: u64,
}

impl SpaceNeeds {
    fn add_text(&mut self, len: usize) {
        self.metadata_bytes += (len + METADATA_OVERHEAD_BYTES) as u64;
    }
}

/// Line of the manifest.
struct ManifestLine<'l> {
    sum: &'l str,
    begin: u64,
    bytes: u64,
    name: &'l str,
}

impl<'l> ManifestLine<'l> {
    fn read(line: &'l str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let sum = words.next().filter(|sum| sum.len() == 64)?;
        let (begin, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self {
            sum,
            begin,
            bytes,
            name: words.next()?,
        })
    }
}

/// Verifies the whole file against its manifest. `seen` gets how many bytes are done, and of
/// how many.
pub(super) fn verify(
    file: &File,
    len: u64,
    seen: &mut dyn FnMut(u64, u64),
) -> Result<VerifiedSnapshot> {
    let (end, manifest) = read_manifest(file, len)?;
    let (all, own) = manifest
        .trim_end_matches('\n')
        .rsplit_once('\n')
        .map(|(all, own)| (format!("{all}\n"), own))
        .context("its manifest is empty: the snapshot is modified")?;
    let mut lines = all.lines();
    if lines.next() != Some(MANIFEST_HEADER) {
        bail!(
            "its manifest does not begin with \"{MANIFEST_HEADER}\": it is modified, or was written by a later version of this program"
        );
    }
    if sha256_hex(all.as_bytes()) != own {
        bail!("its manifest is modified: its checksum differs");
    }
    let mut at = 0;
    let mut part = vec![0; BUFFER_BYTES];
    for line in lines {
        let member = ManifestLine::read(line)
            .with_context(|| format!("its manifest has an invalid line: {line}"))?;
        let next = member.begin.checked_add(member.bytes);
        let next = next.filter(|next| member.begin == at && *next <= end.min(len));
        let next =
            next.with_context(|| format!("its manifest has a gap at \"{}\"", member.name))?;
        let mut hash = Sha256::new();
        while at < next {
            let wanted = part.len().min((next - at) as usize);
            let got = file.read_at(&mut part[..wanted], at)?;
            if got == 0 {
                bail!("it ends within \"{}\": it is truncated", member.name);
            }
            hash.update(&part[..got]);
            at += got as u64;
            seen(at, end);
        }
        if hex(hash.finalize()) != member.sum {
            bail!("\"{}\" is modified: its checksum differs", member.name);
        }
    }
    if at != end {
        bail!("it has members that its manifest does not list, from byte {at} on: it is modified");
    }
    Ok(VerifiedSnapshot {
        end,
        needs: compute_needs(file, end)?,
    })
}

/// Reads the manifest; returns its offset and its text.
fn read_manifest(file: &File, len: u64) -> Result<(u64, String)> {
    let mut begin = file;
    begin.seek(SeekFrom::Start(0))?;
    let mut archive = Archive::new(file);
    let mut last = None;
    let cut = |last: &Option<String>| match last {
        Some(name) => anyhow!(
            "it ends after \"{name}\" without a manifest: it is truncated, or modified there, or was not written by fercuda vram save"
        ),
        None => anyhow!("it is not a snapshot of fercuda vram save"),
    };
    for entry in archive.entries_with_seek()?.raw(true) {
        let mut entry = entry.map_err(|_| cut(&last))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if name != MANIFEST {
            last = Some(name);
            continue;
        }
        let begin = entry.raw_header_position();
        if entry.size() > len {
            bail!(
                "its manifest is modified: its size is given as {} bytes",
                entry.size()
            );
        }
        let mut text = String::new();
        let got = entry.read_to_string(&mut text);
        got.map_err(|_| anyhow!("its manifest is truncated or modified"))?;
        if text.len() as u64 != entry.size() {
            bail!("its manifest is truncated");
        }
        // Only the archive's end follows it: two blocks of zeros.
        let text_end = entry.raw_file_position() + entry.size();
        let mut rest = vec![0; (text_end.next_multiple_of(512) - text_end + 1024) as usize];
        let is_end =
            text_end + rest.len() as u64 == len && file.read_exact_at(&mut rest, text_end).is_ok();
        if !is_end || rest.iter().any(|byte| *byte != 0) {
            bail!("it does not end after its manifest: it is modified or truncated");
        }
        return Ok((begin, text));
    }
    Err(cut(&last))
}

/// Computes the space that the members take.
pub(super) fn compute_needs(file: &File, end: u64) -> Result<SpaceNeeds> {
    let mut begin = file;
    begin.seek(SeekFrom::Start(0))?;
    let mut archive = Archive::new(file);
    let mut all = SpaceNeeds::default();
    let entries = archive.entries_with_seek()?.raw(true);
    for_each_member(entries, end, |entry, name, records| {
        for (key, value) in records.values().filter(|(key, _)| may_set(key)) {
            all.add_text(key.len() + value.len());
        }
        let Some(last) = name.file_name() else {
            return Ok(());
        };
        all.add_text(last.len());
        all.inodes += 1;
        match entry.header().entry_type() {
            EntryType::Symlink => {
                all.add_text(link_target(entry, &records).map_or(0, |it| it.len()))
            }
            EntryType::Regular => {
                let size = entry.size();
                let map = read_sparse_map(BufReader::new(entry), &records)?;
                // Extents may share a page; and a sparse map is untrusted.
                let mut behind = 0;
                for (at, len) in map.map_or_else(|| vec![(0, size)], |it| it.extents) {
                    let first = (at / PAGE_BYTES as u64).max(behind);
                    behind = (at + len).div_ceil(PAGE_BYTES as u64).max(behind);
                    all.pages = all.pages.saturating_add(behind.saturating_sub(first));
                    all.data_bytes = all.data_bytes.saturating_add(len);
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use fercuda_trials::{Work, corpus, try_mutations};

    use super::super::property::SnapshotInput;
    use super::*;

    #[test]
    fn mutated_snapshots_are_verified_or_refused() {
        const WORK: Work = Work {
            name: "snapshots",
            least: 300,
            ci_seconds: 2,
            soak: 4_000_000,
        };
        let root = env!("CARGO_MANIFEST_DIR");
        let inputs = corpus(root, WORK.name);
        let mut file = SnapshotInput::new();
        let len = file.put(&inputs[0]);
        let whole = verify(file.file(), len, &mut |_, _| ()).unwrap();
        assert_eq!((whole.needs.inodes, whole.needs.pages), (4, 3));
        try_mutations(root, WORK, &inputs, |bytes| file.holds_for(bytes));
    }
}

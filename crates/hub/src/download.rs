//! Files of a hub in the local cache: resumed, checked, and shown under their names when complete.
//!
//! The cache has the layout of Hugging Face's own libraries (`hf_hub::Cache`), which find what is
//! fetched here, and the other way round: contents in `blobs`, by their hashes; names in
//! `snapshots`, one folder a commit, which link there.
//!
//! Invariant: what is under a name is complete, has the size that the hub announced, and, if its
//! hash is one of its content (SHA-256, of all large files), that hash.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::Duration;

use hf_hub::{Cache, CacheRepo, Repo};
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use crate::error::{HubError, Result};
use crate::transport::{FileFacts, HubClient};

/// Attempts that bring nothing, one after another, before it is given up.
const ATTEMPTS: u32 = 4;
/// The pause behind the first of these.
const PAUSE: Duration = Duration::from_millis(250);
/// Bytes that are copied at once.
const CHUNK: usize = 1 << 20;

/// How far a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadProgress<'a> {
    /// Its name in the repository.
    pub file: &'a str,
    /// Bytes that are there.
    pub done: u64,
    /// Bytes of the whole file.
    pub size: u64,
}

/// One commit of a repository, from a hub into a cache.
pub(crate) struct Download<'a> {
    pub(crate) client: &'a HubClient,
    pub(crate) cache: &'a Cache,
    pub(crate) repo: &'a Repo,
    /// `owner/name`.
    pub(crate) repository: &'a str,
    pub(crate) commit: &'a str,
}

/// Whether a hub's name of a file stays within a folder.
pub(crate) fn is_inner_name(name: &str) -> bool {
    let parts = Path::new(name).components();
    (1..=1024).contains(&name.len())
        && !name.contains(['\\', '\0'])
        && !name.ends_with('/')
        && parts
            .into_iter()
            .all(|it| matches!(it, Component::Normal(_)))
}

impl Download<'_> {
    fn cached(&self) -> CacheRepo {
        self.cache.repo(self.repo.clone())
    }

    /// The path of a file's name in the cache.
    pub(crate) fn pointer(&self, file: &str) -> PathBuf {
        self.cached().pointer_path(self.commit).join(file)
    }

    fn damaged(&self, file: &str, what: String, advice: &'static str) -> HubError {
        HubError::Damaged {
            file: file.to_owned(),
            repository: self.repository.to_owned(),
            what,
            advice,
        }
    }

    /// Fetches a file, if it is not there.
    pub(crate) fn fetch(
        &self,
        file: &str,
        progress: &mut dyn FnMut(DownloadProgress<'_>),
    ) -> Result<()> {
        let pointer = self.pointer(file);
        // Of a link to what was deleted there is no metadata.
        if fs::metadata(&pointer).is_ok_and(|it| it.is_file()) {
            return Ok(());
        }
        let path = format!("{}/resolve/{}", self.repo.url(), self.repo.url_revision());
        let facts = self.client.facts(self.repository, &path, file)?;
        if let Some(commit) = facts.commit.as_deref().filter(|it| *it != self.commit) {
            let commit: String = commit.chars().take(40).collect();
            let what = format!(
                "is of the commit {commit}, the list of files of {}",
                self.commit
            );
            return Err(self.damaged(file, what, "again: the repository has been changed"));
        }
        let blob = self.cached().blob_path(&facts.etag);
        let folder = blob.parent().unwrap_or(Path::new(""));
        fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
        let lock_path = blob.with_file_name(format!("{}.lock", facts.etag));
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).write(true);
        let lock = options
            .open(&lock_path)
            .map_err(HubError::io("open", &lock_path))?;
        // Waits for another process that fetches the same; it then is there.
        flock(&lock, FlockOperation::LockExclusive)
            .map_err(|error| HubError::io("lock", &lock_path)(error.into()))?;
        let is_whole = |it: fs::Metadata| it.is_file() && it.len() == facts.size;
        if !fs::metadata(&blob).is_ok_and(is_whole) {
            let partial = blob.with_file_name(format!("{}.incomplete", facts.etag));
            self.complete(file, &path, &facts, &partial, progress)?;
            fs::rename(&partial, &blob).map_err(HubError::io("rename", &partial))?;
        }
        link(&blob, &pointer)
    }

    /// Fetches what lacks of a file, and checks all of it.
    fn complete(
        &self,
        file: &str,
        path: &str,
        facts: &FileFacts,
        partial: &Path,
        progress: &mut dyn FnMut(DownloadProgress<'_>),
    ) -> Result<()> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).read(true).write(true);
        let mut to = options
            .open(partial)
            .map_err(HubError::io("open", partial))?;
        let failed = |action| HubError::io(action, partial);
        let mut done = to.seek(SeekFrom::End(0)).map_err(failed("read"))?;
        if done > facts.size {
            done = 0;
        }
        let mut idle = 0;
        while done < facts.size {
            let before = done;
            let came = self.attempt(file, path, facts, (&mut to, &mut done), progress);
            idle = if done > before { 0 } else { idle + 1 };
            match came {
                Ok(_) if done == facts.size => {}
                Ok(reason) if idle >= ATTEMPTS => {
                    let reason = reason.map_or(String::new(), |it| format!(" ({it})"));
                    let what = format!("{done} of {} bytes came{reason}", facts.size);
                    let advice = "again: what has come is kept, and it goes on behind that";
                    return Err(self.damaged(file, what, advice));
                }
                Err(error @ HubError::Unreachable { .. }) if idle >= ATTEMPTS => return Err(error),
                Ok(_) | Err(HubError::Unreachable { .. } | HubError::Answer { .. })
                    if idle < ATTEMPTS =>
                {
                    thread::sleep(PAUSE * (idle + 1));
                }
                // What contradicts the announcement, or is refused, does so again.
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        to.set_len(facts.size).map_err(failed("write"))?;
        to.sync_all().map_err(failed("write"))?;
        let is_hash = facts.etag.len() == 64 && facts.etag.bytes().all(|it| it.is_ascii_hexdigit());
        if is_hash && hash_of(&mut to).map_err(failed("read"))? != facts.etag.to_ascii_lowercase() {
            fs::remove_file(partial).map_err(failed("remove"))?;
            let what = "the bytes that came have another hash than the hub says".to_owned();
            return Err(self.damaged(file, what, "again: they are not kept"));
        }
        Ok(())
    }

    /// Reads one answer into the file; `done` counts what is there. Of one that is cut short the
    /// reason is returned.
    fn attempt(
        &self,
        file: &str,
        path: &str,
        facts: &FileFacts,
        (to, done): (&mut File, &mut u64),
        progress: &mut dyn FnMut(DownloadProgress<'_>),
    ) -> Result<Option<String>> {
        let part = self.client.part(self.repository, path, file, *done)?;
        if let Some(size) = part.size.filter(|it| *it != facts.size) {
            let what = format!("has {size} bytes, {} are announced", facts.size);
            return Err(self.damaged(file, what, "again later, or another HF_ENDPOINT"));
        }
        *done = part.first;
        let failed = |error| HubError::Io {
            action: "write",
            path: self.pointer(file),
            source: error,
        };
        to.seek(SeekFrom::Start(*done)).map_err(failed)?;
        to.set_len(*done).map_err(failed)?;
        let mut body = part.body;
        let mut chunk = vec![0; CHUNK];
        loop {
            progress(DownloadProgress {
                file,
                done: *done,
                size: facts.size,
            });
            let count = match body.read(&mut chunk) {
                Ok(0) => return Ok(None),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // What has come counts.
                Err(error) => return Ok(Some(error.to_string())),
            };
            if *done + count as u64 > facts.size {
                let what = format!("has more than the {} bytes that are announced", facts.size);
                return Err(self.damaged(file, what, "again later, or another HF_ENDPOINT"));
            }
            to.write_all(&chunk[..count]).map_err(failed)?;
            *done += count as u64;
        }
    }
}

/// The SHA-256 of a file, in hexadecimal digits.
fn hash_of(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => hash.update(&chunk[..count]),
        }
    }
    Ok(hash
        .finalize()
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect())
}

/// Makes a name of a content, by a link that stays right if the cache is moved.
fn link(blob: &Path, pointer: &Path) -> Result<()> {
    let folder = pointer.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder).map_err(HubError::io("create", folder))?;
    // Both are in the folder of the repository.
    let root = blob
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new(""));
    let depth = folder
        .strip_prefix(root)
        .map_or(0, |it| it.components().count());
    let mut target: PathBuf = (0..depth).map(|_| Component::ParentDir).collect();
    target.push("blobs");
    target.push(blob.file_name().unwrap_or_default());
    match fs::remove_file(pointer) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(HubError::io("replace", pointer)(error));
        }
        _ => {}
    }
    match std::os::unix::fs::symlink(&target, pointer) {
        // Another process was as quick.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked.map_err(HubError::io("link", pointer)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_out_of_a_folder_are_known() {
        for name in ["a", "a/b.gguf", "..a", "a..b/c"] {
            assert!(is_inner_name(name), "{name}");
        }
        for name in [
            "", "/a", "..", "a/../b", "../a", "./a", "a/", "a\\b", "a\0b",
        ] {
            assert!(!is_inner_name(name), "{name:?}");
        }
    }
}

//! Snapshots of what others use meanwhile, and snapshots that do not fit.

use std::fs::{self, File};

use sha2::{Digest as _, Sha256};

use super::tools::well;
use super::{Here, read, seed};

/// A snapshot that no filesystem was.
#[derive(Default)]
struct Made {
    bytes: Vec<u8>,
    list: String,
}

fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|it| format!("{it:02x}")).collect()
}

impl Made {
    fn raw(&mut self, kind: u8, name: &str, data: &[u8]) {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(0o644);
        header.set_path(name).unwrap();
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(data.len() as u64);
        header.set_cksum();
        self.bytes.extend(header.as_bytes());
        self.bytes.extend(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }

    fn put(&mut self, kind: u8, name: &str, records: &[(&str, &str)], data: &[u8]) {
        let begin = self.bytes.len();
        let records = records.iter().map(|(key, value)| {
            // The length counts its own two digits.
            let rest = format!(" {key}={value}\n");
            assert!((8..90).contains(&rest.len()));
            format!("{}{rest}", rest.len() + 2)
        });
        let records: String = records.collect();
        if !records.is_empty() {
            self.raw(b'x', "records", records.as_bytes());
        }
        self.raw(kind, name, data);
        let (sum, len) = (digest(&self.bytes[begin..]), self.bytes.len() - begin);
        self.list += &format!("{sum} {begin} {len} {name}\n");
    }

    fn end(mut self) -> Vec<u8> {
        let mut list = format!("fercuda vram snapshot 1\n{}", self.list);
        list += &format!("{}\n", digest(list.as_bytes()));
        self.raw(b'0', ".fercuda-vram-snapshot", list.as_bytes());
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

#[test]
fn a_sparse_file_of_millions_of_parts_is_loaded() {
    fastrand::seed(seed());
    // As `save` has it where every other page is a hole; but every other byte, and zeros, which take no room.
    let (parts, begin) = (3_800_000u64, 1u64 << 48);
    let last = fastrand::u8(1..);
    let mut data = format!("{parts}\n");
    for part in 0..parts {
        data += &format!("{}\n1\n", begin + 2 * part);
    }
    assert!(data.len() > 64 << 20);
    let mut data = data.into_bytes();
    data.resize(data.len().next_multiple_of(512), 0);
    data.resize(data.len() + parts as usize - 1, 0);
    data.push(last);
    let mut made = Made::default();
    let size = begin + 2 * parts;
    let size_text = size.to_string();
    let records = [
        ("GNU.sparse.major", "1"),
        ("GNU.sparse.minor", "0"),
        ("GNU.sparse.name", "file"),
        ("GNU.sparse.realsize", &size_text),
    ];
    made.put(b'0', "file", &records, &data);
    let disk = tempfile::tempdir().unwrap();
    let file = disk.path().join("made.tar");
    fs::write(&file, made.end()).unwrap();
    let here = Here::new(&["--size=128MiB", "--ecc=off"]);
    well(&[
        "load",
        here.path().to_str().unwrap(),
        file.to_str().unwrap(),
    ]);
    let file = File::open(here.at("file")).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size);
    assert_eq!(read(&file, size - 4, 9), [0, 0, last, 0]);
    assert_eq!(read(&file, begin, 100_000), vec![0; 100_000]);
}

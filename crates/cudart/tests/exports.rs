//! Exported symbols: all of the 13.0 headers, in the version that NVIDIA's library gives them.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// The functions of `cuda_runtime_api.h`, of the graphics headers and of nvcc's host code, with
/// their per-thread twins.
const NAMES: &str = include_str!("names.txt");
const VERSION: &str = "libcudart.so.13";

/// A 64-bit ELF file, little endian, as far as its tables of dynamic symbols go.
struct Elf(Vec<u8>);

/// A section's type, offset, size and the number of the section that it is linked to.
struct Section {
    kind: u32,
    at: usize,
    size: usize,
    link: usize,
}

impl Elf {
    fn number(&self, at: usize, bytes: usize) -> usize {
        let field = &self.0[at..at + bytes];
        field
            .iter()
            .rev()
            .fold(0, |n, &byte| (n << 8) | usize::from(byte))
    }

    fn sections(&self) -> Vec<Section> {
        let (table, size, count) = (self.number(40, 8), self.number(58, 2), self.number(60, 2));
        let section = |index: usize| {
            let at = table + index * size;
            Section {
                kind: self.number(at + 4, 4) as u32,
                at: self.number(at + 24, 8),
                size: self.number(at + 32, 8),
                link: self.number(at + 40, 4),
            }
        };
        (0..count).map(section).collect()
    }

    fn text(&self, at: usize) -> String {
        let end = self.0[at..].iter().position(|&byte| byte == 0).unwrap();
        String::from_utf8(self.0[at..at + end].to_vec()).unwrap()
    }

    /// Names of version definitions by their numbers.
    fn versions(&self) -> BTreeMap<usize, String> {
        let sections = self.sections();
        let Some(table) = sections.iter().find(|it| it.kind == 0x6fff_fffd) else {
            return BTreeMap::new();
        };
        let names = sections[table.link].at;
        let mut found = BTreeMap::new();
        let mut at = table.at;
        loop {
            let auxiliary = at + self.number(at + 12, 4);
            let name = self.text(names + self.number(auxiliary, 4));
            found.insert(self.number(at + 4, 2), name);
            match self.number(at + 16, 4) {
                0 => return found,
                next => at += next,
            }
        }
    }

    /// Defined functions, each with the name of its version.
    fn functions(&self) -> BTreeMap<String, Option<String>> {
        let sections = self.sections();
        let symbols = sections.iter().find(|it| it.kind == 11).unwrap();
        let versions = sections.iter().find(|it| it.kind == 0x6fff_ffff);
        let names = sections[symbols.link].at;
        let defined = self.versions();
        let mut found = BTreeMap::new();
        for index in 0..symbols.size / 24 {
            let at = symbols.at + index * 24;
            let is_function = self.number(at + 4, 1) & 0xf == 2;
            if is_function && self.number(at + 6, 2) != 0 {
                let number = versions.map(|it| self.number(it.at + index * 2, 2) & 0x7fff);
                let version = number.and_then(|it| defined.get(&it).cloned());
                found.insert(self.text(names + self.number(at, 4)), version);
            }
        }
        found
    }
}

fn library() -> Elf {
    let exe = std::env::current_exe().unwrap();
    Elf(fs::read(exe.parent().unwrap().join("libcudart.so")).unwrap())
}

#[test]
fn every_function_of_the_headers_is_exported_and_nothing_else() {
    let exported: BTreeSet<String> = library().functions().into_keys().collect();
    let listed: BTreeSet<String> = NAMES.lines().map(str::to_owned).collect();
    let missing: Vec<_> = listed.difference(&exported).collect();
    let further: Vec<_> = exported.difference(&listed).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
    assert!(further.is_empty(), "not in the headers: {further:?}");
}

#[test]
fn symbols_have_the_version_that_programs_ask_for() {
    for (name, version) in library().functions() {
        assert_eq!(version.as_deref(), Some(VERSION), "{name}");
    }
}

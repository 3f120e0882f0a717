//! Threads that write and read concurrently, while blocks are scrubbed, corrupted, and moved as the
//! filesystem grows and shrinks.
//!
//! Each byte encodes its writer and five bits that depend on its offset: a byte in a wrong place,
//! or one that was never written, is detected. In a writer's own files each byte has to be the last
//! one it wrote.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::control::InjectedFault;
use crate::tree::KIND;

const WRITERS: u8 = 4;
/// Files of each writer, and files shared by all.
const OWN: usize = 3;
const SHARED: usize = 3;
/// Of the pieces of this size in a shared file, each writer leaves some unwritten.
const PIECE: u64 = 41_000;
const LONGEST: u64 = 9 * PIECE;
const ME: Credentials = Credentials {
    user: 0,
    group: 0,
    umask: 0,
};

fn byte_of(writer: u8, place: u64) -> u8 {
    writer << 5 | (place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59) as u8
}

fn shared_name(at: usize) -> Vec<u8> {
    format!("s{at}").into_bytes()
}

fn may_write(writer: u8, place: u64) -> bool {
    !(place / PIECE + u64::from(writer)).is_multiple_of(WRITERS.into())
}

/// Whether each byte is zero, or was written there by its writer.
fn is_sound(bytes: &[u8], from: u64, may: impl Fn(u8, u64) -> bool) -> bool {
    (from..).zip(bytes).all(|(place, byte)| {
        let writer = byte >> 5;
        *byte == 0 || *byte == byte_of(writer, place) && may(writer, place)
    })
}

/// Counts down when its thread ends, even by a panic.
struct Left<'c>(&'c AtomicU32);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// The state that all threads share.
struct All<'r, M: Medium> {
    handler: &'r RequestHandler<M>,
    shared: Vec<u32>,
    /// A directory with some of the writers' files.
    directory: u32,
    /// Writers that are not done.
    left: AtomicU32,
    /// Rounds of scrubbing, and faults injected.
    rounds: AtomicU64,
    faults: AtomicU64,
    resizes: AtomicU64,
}

struct Own {
    inode: u32,
    at: u32,
    name: Vec<u8>,
    bytes: Vec<u8>,
}

impl<M: Medium + 'static> All<'_, M> {
    fn is_over(&self) -> bool {
        self.left.load(Relaxed) == 0
    }

    fn read(&self, inode: u32, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let take = |some: &[u8]| bytes.extend_from_slice(some);
        self.handler.read(inode, at, len, true, take).unwrap();
        bytes
    }

    fn same(&self, own: &Own, bytes: Range<usize>) {
        let mut at = bytes.start;
        let end = bytes.end.min(own.bytes.len());
        while at < end {
            let got = self.read(own.inode, at as u64, (end - at).min(100_000));
            assert!(!got.is_empty(), "{at} of {end}");
            let expected = &own.bytes[at..at + got.len()];
            let other = got.iter().zip(expected).position(|(is, was)| is != was);
            assert_eq!(other.map(|it| (at + it, got[it], expected[it])), None);
            at += got.len();
        }
        let size = self.handler.tree.attributes(own.inode).unwrap().size;
        assert_eq!(size, own.bytes.len() as u64);
    }

    fn name(&self, writer: u8, random: &mut Rng) -> (u32, Vec<u8>) {
        let at = if random.bool() { ROOT } else { self.directory };
        (at, format!("{writer} {}", random.u64(..)).into_bytes())
    }

    fn make(&self, writer: u8, random: &mut Rng) -> Own {
        let (at, name) = self.name(writer, random);
        let made = self.handler.make(at, &name, libc::S_IFREG | 0o600, 0, ME);
        Own {
            inode: made.unwrap().inode,
            at,
            name,
            bytes: Vec::new(),
        }
    }

    fn write(&self, writer: u8, calls: u32, mut random: Rng) {
        let _left = Left(&self.left);
        let mut own: Vec<Own> = (0..OWN).map(|_| self.make(writer, &mut random)).collect();
        for call in 0..calls {
            let at = random.u64(..LONGEST);
            let len = match random.u32(..4) {
                0 => random.u64(1..3 * PIECE),
                1 => random.u64(1..300),
                _ => random.u64(1..9000),
            };
            match random.u32(..10) {
                0..6 => self.change_own(writer, &mut own, at / 2, len, &mut random),
                6 => self.look_around(writer, &own, &mut random),
                _ => self.change_shared(writer, at, len, &mut random),
            }
            if call % 50 == 49 {
                own.iter().for_each(|it| self.same(it, 0..usize::MAX));
            }
        }
        for it in own {
            self.same(&it, 0..usize::MAX);
            let found = self.handler.tree.look_up(it.at, &it.name);
            assert_eq!(found.map(|it| it.inode), Ok(it.inode));
            self.handler.remove_name(it.at, &it.name).unwrap();
            self.same(&it, 0..usize::MAX);
            self.handler.forget_inode(it.inode, 2);
        }
    }

    fn change_own(&self, writer: u8, all: &mut [Own], at: u64, len: u64, random: &mut Rng) {
        let (first, other) = (random.usize(..OWN), random.usize(..OWN));
        let end = at + len;
        let own = &mut all[first];
        match random.u32(..16) {
            0..7 => {
                let at = if random.u32(..3) == 0 {
                    own.bytes.len() as u64
                } else {
                    at
                };
                let at = at.min(LONGEST);
                let bytes: Vec<u8> = (at..at + len).map(|it| byte_of(writer, it)).collect();
                let done = self.handler.write_all(own.inode, at, &bytes, None);
                let done = done.unwrap_or_else(|error| {
                    assert_eq!(error, Errno::NOSPC);
                    0
                });
                let end = at as usize + done;
                if done > 0 {
                    own.bytes.resize(own.bytes.len().max(end), 0);
                    own.bytes[at as usize..end].copy_from_slice(&bytes[..done]);
                }
                if done < bytes.len() {
                    // Truncates a file to free space.
                    self.truncate(&mut all[other], 0);
                }
            }
            7 | 8 => self.truncate(own, at),
            9 => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                self.handler.allocate(own.inode, at, len, mode).unwrap();
                let end = own.bytes.len().min(end as usize);
                if (at as usize) < end {
                    own.bytes[at as usize..end].fill(0);
                }
            }
            10 => match self.handler.allocate(own.inode, at, len, 0) {
                Ok(()) => own.bytes.resize(own.bytes.len().max(end as usize), 0),
                Err(error) => assert_eq!(error, Errno::NOSPC),
            },
            11 | 12 if first != other => {
                // To the same offset, as bytes encode where they were written.
                let source = all[other].bytes.clone();
                let (from, own) = (all[other].inode, &mut all[first]);
                let at = at & !1023;
                let done = self.handler.copy((from, at), (own.inode, at), len);
                let done = done.unwrap_or_else(|error| {
                    assert_eq!(error, Errno::NOSPC);
                    0
                }) as usize;
                let (at, end) = (at as usize, at as usize + done);
                if done > 0 {
                    own.bytes.resize(own.bytes.len().max(end), 0);
                    own.bytes[at..end].copy_from_slice(&source[at..end]);
                }
            }
            13 => {
                // The file exists as long as the kernel references it.
                self.handler.remove_name(own.at, &own.name).unwrap();
                self.same(own, 0..usize::MAX);
                self.handler.forget_inode(own.inode, 1);
                *own = self.make(writer, random);
            }
            _ => {
                let (at, name) = self.name(writer, random);
                let how = libc::RENAME_NOREPLACE;
                let moved = self
                    .handler
                    .move_name((own.at, &own.name), (at, &name), how, ME);
                assert_eq!(moved, Ok(()));
                (own.at, own.name) = (at, name);
            }
        }
        self.same(
            &all[first],
            at.saturating_sub(3000) as usize..end as usize + 3000,
        );
    }

    fn truncate(&self, own: &mut Own, size: u64) {
        let cut = self.handler.set(
            own.inode,
            &mut AttributeChange::default(),
            Some(size),
            now(),
        );
        assert_eq!(cut.unwrap().size, size);
        own.bytes.resize(size as usize, 0);
    }

    fn change_shared(&self, writer: u8, at: u64, len: u64, random: &mut Rng) {
        let inode = *random.choice(&self.shared).unwrap();
        let read = |at: u64, len: usize| {
            let bytes = self.read(inode, at, len.min(100_000));
            assert!(is_sound(&bytes, at, may_write), "{at}, {len} bytes");
        };
        let is_full = |error: Errno| assert_eq!(error, Errno::NOSPC);
        match random.u32(..13) {
            0..5 => {
                let bytes = (at..at + len).take_while(|it| may_write(writer, *it));
                let bytes: Vec<u8> = bytes.map(|it| byte_of(writer, it)).collect();
                if !bytes.is_empty() {
                    let done = self.handler.write_all(inode, at, &bytes, None);
                    done.map(drop).unwrap_or_else(is_full);
                }
            }
            5 => {
                let from = *random.choice(&self.shared).unwrap();
                if from != inode {
                    let at = at & !1023;
                    let done = self.handler.copy((from, at), (inode, at), len);
                    done.map(drop).unwrap_or_else(is_full);
                }
            }
            6 => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                self.handler.allocate(inode, at, len, mode).unwrap();
            }
            7 => {
                let mode = libc::FALLOC_FL_ZERO_RANGE;
                let done = self.handler.allocate(inode, at, len, mode);
                done.unwrap_or_else(is_full);
            }
            8 => {
                // Each file has one name at all times, and each name leads to one file.
                let (one, other) = (random.usize(..SHARED), random.usize(..SHARED));
                let (one, other) = (shared_name(one), shared_name(other));
                let how = libc::RENAME_EXCHANGE;
                let moved = self
                    .handler
                    .move_name((ROOT, &one), (ROOT, &other), how, ME);
                assert_eq!(moved, Ok(()));
            }
            9 if random.u32(..4) == 0 => {
                let change = &mut AttributeChange::default();
                self.handler.set(inode, change, Some(at), now()).unwrap();
            }
            _ => {}
        }
        read(at.saturating_sub(2000), len as usize + 4000);
    }

    /// Checks that names that exist all the time are listed once, and that shared files are sound.
    fn look_around(&self, writer: u8, own: &[Own], random: &mut Rng) {
        let (mut behind, mut met, mut others) = (0, Vec::new(), Vec::new());
        loop {
            let before = behind;
            let most = random.usize(1..9);
            let (mut count, mut inodes) = (0, Vec::new());
            let visit = |number: u64, name: &[u8], it: &InodeAttributes| {
                if count == most {
                    return false;
                }
                (behind, count) = (number, count + 1);
                if name[0] == b's' {
                    met.push(name.to_vec());
                    assert!(!inodes.contains(&it.inode), "two names of one file");
                    inodes.push(it.inode);
                }
                let is_other = it.mode & KIND == libc::S_IFREG && name[0] != writer + b'0';
                others.extend((is_other && name[0] != b's').then(|| name.to_vec()));
                true
            };
            self.handler.list(ROOT, before, false, visit).unwrap();
            if behind == before {
                break;
            }
        }
        met.sort_unstable();
        assert_eq!(met, (0..SHARED).map(shared_name).collect::<Vec<_>>());
        if let Some(name) = random.choice(&others) {
            // It may be gone or renamed.
            if let Ok(it) = self.handler.tree.look_up(ROOT, name) {
                let at = random.u64(..LONGEST / 2);
                let bytes = self.read(it.inode, at, 20_000);
                let theirs = name[0] - b'0';
                assert!(is_sound(&bytes, at, |writer, _| writer == theirs));
                self.handler.forget_inode(it.inode, 1);
            }
        }
        assert!(
            own.iter()
                .all(|it| self.handler.tree.attributes(it.inode).is_ok())
        );
    }

    fn step(&self, step: ControlRequest) -> Result<[u64; 4], (Errno, [u64; 2])> {
        self.handler.step(ROOT, 0, step)
    }

    fn scrub(&self) {
        let mut from = 0;
        while !self.is_over() {
            let [next, _, _, lost] = self.step(ControlRequest::Scrub { from }).unwrap();
            assert_eq!(lost, 0);
            self.rounds.fetch_add(u64::from(next == 0), Relaxed);
            from = next;
            std::thread::yield_now();
        }
    }

    /// Injects as many faults at a time as can be corrected, and more once all blocks were
    /// scrubbed.
    fn inject(&self, mut random: Rng) {
        while !self.is_over() {
            let rows = [InjectedFault::Symbol, InjectedFault::Row];
            let faults = match random.u32(..4) {
                0 => vec![InjectedFault::Burst],
                1 => vec![
                    InjectedFault::Metadata,
                    InjectedFault::Row,
                    InjectedFault::Symbol,
                ],
                _ => vec![*random.choice(&rows).unwrap(); random.usize(1..=4)],
            };
            for fault in faults {
                let seed = random.u64(..);
                let step = ControlRequest::Inject {
                    fault,
                    count: 1,
                    seed,
                };
                let [made, ..] = self.step(step).unwrap();
                self.faults.fetch_add(made, Relaxed);
            }
            let until = self.rounds.load(Relaxed) + 2;
            while !self.is_over() && self.rounds.load(Relaxed) < until {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }

    /// Grows and shrinks, as [`crate::control::Control::resize`] does.
    fn resize(&self, blocks: Range<u64>, mut random: Rng) {
        while !self.is_over() {
            let blocks = random.u64(blocks.clone());
            let resized = self.step(ControlRequest::Resize { blocks });
            let is_done = resized.is_ok() && self.move_away();
            self.resizes.fetch_add(u64::from(is_done), Relaxed);
            assert!(resized.is_ok() || matches!(resized, Err((Errno::NOSPC, _))));
            std::thread::sleep(Duration::from_micros(random.u64(..3000)));
        }
        self.step(ControlRequest::Resize { blocks: blocks.end })
            .unwrap();
    }

    fn move_away(&self) -> bool {
        while self.step(ControlRequest::Trim).unwrap()[0] > 0 {
            let mut from = 0;
            loop {
                match self.step(ControlRequest::Move { from }) {
                    Ok([0, ..]) => break,
                    Ok([next, ..]) => from = next,
                    // Files have grown meanwhile.
                    Err((error, _)) => {
                        assert_eq!(error, Errno::NOSPC);
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// Runs this many calls of each writer, in a space of this many blocks.
pub(super) fn work<M: Medium + 'static>(
    handler: &RequestHandler<M>,
    blocks: Range<u64>,
    calls: u32,
    random: &mut Rng,
) {
    let make = |name: &[u8], kind| handler.make(ROOT, name, kind | 0o700, 0, ME).unwrap().inode;
    let all = All {
        handler,
        shared: (0..SHARED)
            .map(|it| make(&shared_name(it), libc::S_IFREG))
            .collect(),
        directory: make(b"d", libc::S_IFDIR),
        left: AtomicU32::new(WRITERS.into()),
        rounds: AtomicU64::new(0),
        faults: AtomicU64::new(0),
        resizes: AtomicU64::new(0),
    };
    std::thread::scope(|threads| {
        for writer in 1..=WRITERS {
            let (all, random) = (&all, random.fork());
            threads.spawn(move || all.write(writer, calls, random));
        }
        threads.spawn(|| all.scrub());
        let (injecting, resizing) = (random.fork(), random.fork());
        threads.spawn(|| all.inject(injecting));
        threads.spawn(|| all.resize(blocks.clone(), resizing));
    });
    // The files have the same bytes; and corrupt blocks were corrected or freed.
    let mut from = 0;
    loop {
        let [next, _, _, lost] = all.step(ControlRequest::Scrub { from }).unwrap();
        assert_eq!(lost, 0);
        from = next;
        if next == 0 {
            break;
        }
    }
    let mut pages = 0;
    for inode in &all.shared {
        let attributes = handler.tree.attributes(*inode).unwrap();
        pages += attributes.pages;
        let mut at = 0;
        while at < attributes.size {
            let bytes = all.read(*inode, at, 100_000);
            assert!(is_sound(&bytes, at, may_write));
            at += bytes.len() as u64;
        }
    }
    let (space, counters) = (handler.store.space(), handler.store.counters());
    assert_eq!((space.used_pages(), handler.tree.orphans()), (pages, 0));
    assert_eq!(handler.tree.inodes().0, 2 + SHARED as u64);
    let corrected = counters.corrected_blocks.load(Relaxed);
    let figures = [&all.faults, &all.rounds, &all.resizes].map(|it| it.load(Relaxed));
    eprintln!("{corrected} corrected of [faults, rounds, resizes] {figures:?}");
    assert!(0 < corrected && corrected <= figures[0] && figures[2] > 0);
    assert_eq!(counters.lost_blocks.load(Relaxed), 0);
    for (at, inode) in all.shared.iter().enumerate() {
        handler.remove_name(ROOT, &shared_name(at)).unwrap();
        handler.forget_inode(*inode, 1);
    }
    handler.tree.remove_directory(ROOT, b"d", now()).unwrap();
    handler.forget_inode(all.directory, 1);
    assert_eq!((space.used_pages(), handler.tree.inodes().0), (0, 1));
    assert_eq!(
        (handler.tree.metadata_bytes().0, space.pages()),
        (0, blocks.end * 32)
    );
}

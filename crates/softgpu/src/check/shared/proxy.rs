//! Accesses of the asynchronous proxy to shared memory, beside those of threads.

use super::{PENDING, SharedFinding, SharedRecord, SharedShadow, WROTE};
use crate::check::clock::SEEN_SHARED;
use crate::report::AccessKind;

/// What a copy of the asynchronous proxy finds in shared memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ProxyFinding {
    /// The same as a thread would.
    Thread(SharedFinding),
    /// A thread has written there, before the copy, and no fence of the proxy stands between.
    Unseen(SharedRecord),
}

impl SharedShadow {
    /// A copy that lane `lane` of warp `w` issues reads `len` bytes at `at`, inside the memory.
    pub(crate) fn copied_out(
        &self,
        issuer: (usize, u32),
        (at, len): (u32, u32),
    ) -> Option<ProxyFinding> {
        let thread = issuer.0 as u32 * 32 + issuer.1;
        let mut seen = None;
        for word in (at / 4) as usize..(at + len).div_ceil(4) as usize {
            let raw = *self.writes.get(word)?;
            let writer = SharedRecord(raw);
            if raw & PENDING != 0 {
                return Some(ProxyFinding::Thread(SharedFinding::Pending(writer)));
            }
            if raw & 15 == 0 {
                return Some(ProxyFinding::Thread(SharedFinding::Uninitialised));
            }
            let earlier = SharedRecord(self.earlier[word]);
            let other = (earlier.0 & WROTE != 0).then_some(earlier);
            for record in [Some(writer), other].into_iter().flatten() {
                if seen == Some(record.0) || record.bytes() == 0 {
                    continue;
                }
                let found = self.judged(record, AccessKind::Write, issuer, thread);
                if found.is_some() {
                    return found;
                }
                seen = Some(record.0);
            }
        }
        None
    }

    /// A copy that lane `lane` of warp `w` issues writes `len` bytes at `at`, inside the memory.
    /// What comes behind the copy is behind the accesses before it.
    pub(crate) fn copied_in(
        &mut self,
        issuer: (usize, u32),
        (at, len): (u32, u32),
    ) -> Option<ProxyFinding> {
        let thread = issuer.0 as u32 * 32 + issuer.1;
        let mut found = None;
        for word in (at / 4) as usize..(at + len).div_ceil(4) as usize {
            let Some(&raw) = self.writes.get(word) else {
                break;
            };
            let earlier = self.earlier[word];
            let of_earlier = if earlier & WROTE != 0 {
                AccessKind::Write
            } else {
                AccessKind::Read
            };
            for (record, kind) in [
                (raw, AccessKind::Write),
                (self.reads[word], AccessKind::Read),
                (earlier, of_earlier),
            ] {
                let record = SharedRecord(record);
                if found.is_none() && record.bytes() != 0 {
                    found = self.judged(record, kind, issuer, thread);
                }
            }
            if found.is_none() && raw & PENDING != 0 {
                let pending = SharedFinding::Pending(SharedRecord(raw));
                found = Some(ProxyFinding::Thread(pending));
            }
            self.open -= usize::from(raw & 15 != 15);
            self.writes[word] = 15;
            self.reads[word] = 0;
            self.earlier[word] = 0;
        }
        found
    }

    /// What a copy meets of an access. One that only read is over once the copy is ordered behind
    /// it: then nothing of it is left that a fence of the proxy could hand on.
    fn judged(
        &self,
        was: SharedRecord,
        kind: AccessKind,
        (w, lane): (usize, u32),
        thread: u32,
    ) -> Option<ProxyFinding> {
        if !self.ordered(was, thread) {
            return Some(ProxyFinding::Thread(SharedFinding::Race(was, kind)));
        }
        let did = (was.thread(), was.time());
        let block = self.clocks.block();
        let seen =
            kind == AccessKind::Read || self.clocks.is_seen((w, lane), SEEN_SHARED, block, did);
        (!seen).then_some(ProxyFinding::Unseen(was))
    }
}

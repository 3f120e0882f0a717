//! A pool on a simulated device, and a shadow model that knows what may be reused.
//!
//! The device has streams that run at their own pace. The shadow model keeps, for every span of
//! memory, how far each stream had used it when it was freed, and for every stream and for the host
//! how far they follow the others (vector clocks). A block may be allocated only if its new user
//! follows all its uses. The model knows no queues, epochs or fences.
#![allow(dead_code, reason = "each test that includes this uses a part of it")]

use std::collections::BTreeMap;

use fercuda_pool::{
    AllocationRequest, BreakableRules, DevicePool, Error, MemoryBudget, PoolPlace, RetentionPolicy,
    ReuseRule, Span, StreamId, TenantId,
};

mod device;
mod op;

pub(crate) use device::Kind;
use device::{Clocks, DEVICE_BYTES, Device, PIECE, SLOTS, Shared, follows, join};
pub(crate) use op::Op;
use op::{STREAMS, TENANTS};

/// Allocations and frees of a stream that is alone.
const ALONE: u32 = 100;

/// A live block, as the program knows it.
#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    span: Span,
    /// The work that any work using it must follow.
    made: Clocks,
    /// How far streams have used it.
    uses: Clocks,
    tenant: u16,
    requested_bytes: u64,
    note: u64,
}

impl LiveBlock {
    fn known(&self) -> fercuda_pool::LiveBlock<u64> {
        fercuda_pool::LiveBlock {
            span: self.span,
            tenant: TenantId(self.tenant),
            note: self.note,
            requested_bytes: self.requested_bytes,
        }
    }
}

/// The program, the pool and the shadow model.
pub(crate) struct World {
    pool: DevicePool<Shared, Shared, u64, BreakableRules>,
    device: Shared,
    live: Vec<LiveBlock>,
    /// The start and end of each live block.
    taken: BTreeMap<u64, u64>,
    /// Freed memory: its end, and how far streams had used it.
    freed: BTreeMap<u64, (u64, Clocks)>,
    streams: [StreamId; STREAMS],
    next_stream: u64,
    pinned: Vec<Span>,
    tenant_bytes: [u64; TENANTS as usize],
    /// The tenants' limits.
    shares: [u64; TENANTS as usize],
    /// No two requests have the same note.
    next_note: u64,
    steps: u64,
    /// The only stream that allocates and frees, for this many more operations.
    alone: (usize, u32),
    /// The results, for tests that check that something happens.
    pub(crate) counts: Counts,
}

/// Counts of results.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Successful allocations.
    pub(crate) allocated: u64,
    /// Blocks previously used by work that is not known to be done.
    pub(crate) reused_early: u64,
    /// Allocations that failed for lack of memory.
    pub(crate) exhausted: u64,
    /// Allocations that failed at the tenant's limit.
    pub(crate) refused: u64,
    /// Frees.
    pub(crate) freed: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.allocated += other.allocated;
        self.reused_early += other.reused_early;
        self.exhausted += other.exhausted;
        self.refused += other.refused;
        self.freed += other.freed;
    }
}

type Answer = Result<(), String>;

impl World {
    pub(crate) fn new(kind: Kind) -> Self {
        let device = Shared::default();
        device.lock().top = PIECE;
        device.lock().kind = kind;
        let mut world = World {
            pool: DevicePool::with_rules(
                device.clone(),
                device.clone(),
                MemoryBudget::new(DEVICE_BYTES),
            ),
            device,
            live: Vec::new(),
            taken: BTreeMap::new(),
            freed: BTreeMap::new(),
            streams: [StreamId(0); STREAMS],
            next_stream: 1,
            pinned: Vec::new(),
            tenant_bytes: [0; TENANTS as usize],
            shares: [u64::MAX; TENANTS as usize],
            next_note: 0,
            alone: (0, 0),
            steps: 0,
            counts: Counts::default(),
        };
        for stream in 0..STREAMS {
            world.open(stream);
        }
        world
    }

    pub(crate) fn break_rule(&self, rule: ReuseRule) {
        self.pool.break_rule(rule);
    }

    /// Creates a stream, in a slot for which the host knows all work to be done.
    fn open(&mut self, stream: usize) {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        let mut device = self.device.lock();
        let free = |device: &Device, slot: usize| {
            device.slots.values().all(|other| *other != slot)
                && device.host[slot] == device.streams[slot].clocks[slot]
        };
        let slot = (0..SLOTS).find(|slot| free(&device, *slot));
        let slot = slot.unwrap_or_else(|| {
            let all = device.all();
            device.finish(&all);
            (0..SLOTS)
                .find(|slot| free(&device, *slot))
                .expect("fewer streams than slots")
        });
        let known = device.host;
        device.streams[slot].clocks = known;
        device.slots.insert(id, slot);
        self.streams[stream] = id;
    }

    fn slot(&self, stream: usize) -> usize {
        self.device.lock().slots[&self.streams[stream]]
    }

    fn place(&self, stream: Option<usize>) -> PoolPlace {
        stream.map_or(PoolPlace::Anywhere, |stream| {
            PoolPlace::Stream(self.streams[stream])
        })
    }

    /// Runs one operation; an error describes the violation.
    pub(crate) fn step(&mut self, mut op: Op) -> Answer {
        if let (Op::Allocate { stream, .. } | Op::Free { stream, .. }, (alone, 1..)) =
            (&mut op, self.alone)
        {
            *stream = Some(alone);
            self.alone.1 -= 1;
        }
        match op {
            Op::Allocate {
                stream,
                bytes,
                align,
                tenant,
            } => {
                self.allocate(stream, bytes, align, tenant)?;
            }
            Op::Use { which, stream } => {
                let slot = self.slot(stream);
                let at = which % self.live.len().max(1);
                let mut device = self.device.lock();
                if let Some(live) = self.live.get_mut(at)
                    && !device.capturing
                {
                    // The program waits for the work that the block was allocated for.
                    device.wait(slot, &live.made);
                    live.uses[slot] = device.queue(slot);
                }
            }
            Op::Free { which, stream } => {
                if let Some(live) = self.last_use(which, stream) {
                    self.free(live, stream)?;
                }
            }
            Op::FreeIf { which, stream, odd } => {
                if let Some(live) = self.last_use(which, stream) {
                    let (address, place) = (live.span.address, self.place(stream));
                    let is_such = live.note % 2 == u64::from(odd);
                    let freed = self
                        .pool
                        .free_if(address, place, |note| *note % 2 == u64::from(odd));
                    match freed {
                        Ok(freed) if is_such && freed == live.known() => self.freed(&live),
                        Err(Error::NotPermitted { .. }) if !is_such => self.live.push(live),
                        _ => return Err(format!("{freed:?} for {live:?}, with condition {odd}")),
                    }
                }
            }
            Op::FreeAll { note } => {
                let is_such = |other: &u64| *other as u8 == note;
                let freed = self.pool.free_all(PoolPlace::Anywhere, is_such);
                let mut freed: Vec<u64> = freed.iter().map(|freed| freed.note).collect();
                let such = self.live.extract_if(.., |live| is_such(&live.note));
                let such: Vec<LiveBlock> = such.collect();
                let mut expected: Vec<u64> = such.iter().map(|live| live.note).collect();
                freed.sort_unstable();
                expected.sort_unstable();
                if freed != expected {
                    return Err(format!("{freed:?} were freed, not {expected:?}"));
                }
                such.iter().for_each(|live| self.freed(live));
            }
            Op::Look { which, offset } => {
                if let Some(live) = self.live.get(which % self.live.len().max(1)) {
                    let address = live.span.address + offset;
                    let around = self.taken.range(..=address).next_back();
                    let around = around.filter(|(_, end)| **end > address);
                    let found = self.pool.containing(address);
                    if found.map(|live| live.span.address) != around.map(|(at, _)| *at)
                        || self.pool.live(live.span.address) != Some(live.known())
                    {
                        return Err(format!("{found:?} is at {address:#x}, not {around:x?}"));
                    }
                }
            }
            Op::FreeWrong { address } => {
                if !self.taken.contains_key(&address)
                    && self.pool.free(address, PoolPlace::Anywhere)
                        != Err(Error::Unknown { address })
                {
                    return Err(format!("{address:#x} was freed, but is not a block"));
                }
            }
            Op::Advance { stream, steps } => {
                let slot = self.slot(stream);
                self.device.lock().advance(slot, steps);
            }
            Op::Synchronise { stream } => {
                if !self.device.lock().capturing {
                    let begun = self
                        .pool
                        .begin_host_wait(stream.map(|s| self.place(Some(s))));
                    let slot = stream.map(|stream| self.slot(stream));
                    let mut device = self.device.lock();
                    let until = slot.map_or_else(|| device.all(), |s| device.streams[s].clocks);
                    device.finish(&until);
                    drop(device);
                    self.pool.end_host_wait(&begun);
                    let usage = self.pool.usage();
                    if stream.is_none() && usage.waiting_bytes > 0 {
                        return Err(format!("nothing is left to wait for: {usage:?}"));
                    }
                }
            }
            Op::Capture => {
                let mut device = self.device.lock();
                device.capturing = !device.capturing;
            }
            Op::Retire { stream } => {
                let id = self.streams[stream];
                self.pool.retire(id);
                self.device.lock().slots.remove(&id);
                self.open(stream);
            }
            Op::Finish { stream } => {
                let (id, slot) = (self.streams[stream], self.slot(stream));
                let mut device = self.device.lock();
                let until = device.streams[slot].clocks;
                device.finish(&until);
                drop(device);
                self.pool.end(id);
                self.device.lock().slots.remove(&id);
                self.open(stream);
            }
            Op::End => {
                // All queued work is done, whether or not the host knows.
                let freed = self.pool.free_all(PoolPlace::Anywhere, |_| true);
                if freed.len() != self.live.len() {
                    return Err(format!("{} of {}", freed.len(), self.live.len()));
                }
                for live in std::mem::take(&mut self.live) {
                    self.freed(&live);
                }
                self.pinned.clear();
                self.pool.abandon();
                let mut device = self.device.lock();
                let all = device.all();
                device.finish(&all);
                if device.physical() != 0 {
                    return Err(format!("{} bytes are left", device.physical()));
                }
            }
            Op::Meet => self.pool.assume_contention(),
            Op::Alone { stream } => {
                self.alone = (stream, ALONE);
                self.pool.assume_alone(self.streams[stream]);
            }
            Op::Trim { sixteenths } => {
                let keep = DEVICE_BYTES / 16 * sixteenths;
                let before = self.pool.usage().bytes;
                let gone = self.pool.trim_to(keep);
                let usage = self.pool.usage();
                if usage.bytes + gone < before
                    || usage.ready_bytes > keep + self.pool.stranded_bytes() + PIECE
                {
                    return Err(format!("{gone} bytes are gone, to keep {keep}: {usage:?}"));
                }
            }
            Op::Retention { slack, high } => self.pool.set_retention(RetentionPolicy {
                slack_bytes: DEVICE_BYTES / 16 * slack,
                slack_divisor: if slack < 16 { 64 } else { 1 },
                others_bytes: PIECE * (slack % 3),
                high_bytes: if high < 16 {
                    DEVICE_BYTES / 16 * high
                } else {
                    u64::MAX
                },
                low_bytes: DEVICE_BYTES / 32 * high,
            }),
            Op::Pin { which } => {
                if let Some(live) = self.live.get(which % self.live.len().max(1))
                    && self.pinned.len() < 8
                {
                    let pinned = self
                        .pool
                        .pin(live.span.address)
                        .map_err(|e| e.to_string())?;
                    self.pinned.push(pinned);
                }
            }
            Op::Unpin => {
                if let Some(span) = self.pinned.pop() {
                    self.pool.unpin(span.address);
                }
            }
            Op::Limit { sixteenths } => {
                self.pool.budget().set_limit(DEVICE_BYTES / 16 * sixteenths);
            }
            Op::TenantLimit { tenant, sixteenths } => {
                let share = DEVICE_BYTES / 16 * sixteenths;
                self.shares[usize::from(tenant)] = share;
                self.pool.set_tenant_limit(TenantId(tenant), share);
            }
            Op::Fail { times } => self.device.lock().fail = times,
        }
        self.settled()
    }

    fn allocate(&mut self, stream: Option<usize>, bytes: u64, align: u64, tenant: u16) -> Answer {
        let request = AllocationRequest {
            bytes,
            align_bytes: align,
            place: self.place(stream),
            tenant: TenantId(tenant),
            note: self.next_note,
        };
        self.next_note += 1;
        let before = self.device.lock().physical();
        let answer = self.pool.allocate(&request);
        self.forget_unmapped()?;
        let limit = self.pool.budget().limit_bytes();
        let physical = self.device.lock().physical();
        if physical > limit && physical > before {
            return Err(format!("{physical} bytes of {limit}"));
        }
        let rounded = bytes.max(1).next_multiple_of(align.clamp(256, 512));
        let share = self.shares[usize::from(tenant)];
        let held = &mut self.tenant_bytes[usize::from(tenant)];
        let span = match answer {
            Ok(span) => span,
            Err(Error::Exhausted { usage, .. }) => {
                self.counts.exhausted += 1;
                // Before it fails, all pending memory must have been waited for.
                if usage.waiting_bytes > 0 && !self.device.lock().capturing {
                    return Err(format!("nothing was waited for: {usage:?}"));
                }
                return Ok(());
            }
            Err(Error::Tenant { .. }) if *held + rounded > share => {
                self.counts.refused += 1;
                return Ok(());
            }
            Err(other) => return Err(other.to_string()),
        };
        *held += rounded;
        if *held > share {
            return Err(format!("tenant {tenant} uses {held} of {share}"));
        }
        if span.bytes != rounded || !span.address.is_multiple_of(align.max(256)) {
            return Err(format!("{span:?} for {bytes} bytes at {align}"));
        }
        self.counts.allocated += 1;
        // It overlaps no other live block.
        let below = self.taken.range(..span.end()).next_back();
        if below.is_some_and(|(_, end)| *end > span.address) {
            return Err(format!("{span:?} overlaps {below:x?}"));
        }
        self.taken.insert(span.address, span.end());
        let device = self.device.lock();
        if !device.is_memory(span) {
            return Err(format!("{span:?} is not all memory"));
        }
        // Its user follows all earlier work on it.
        let mut follows_now = device.host;
        if let Some(stream) = stream {
            join(
                &mut follows_now,
                &device.streams[device.slots[&self.streams[stream]]].clocks,
            );
        }
        let host = device.host;
        drop(device);
        let (mut early, mut wrong) = (false, None);
        self.cut_freed(span, |uses| {
            early |= !follows(&host, uses);
            if !follows(&follows_now, uses) {
                wrong = Some(*uses);
            }
        });
        self.counts.reused_early += u64::from(early);
        if let Some(uses) = wrong {
            return Err(format!(
                "{span:?} is reused by {stream:?} too early: used until {uses:?}, known {follows_now:?}"
            ));
        }
        self.live.push(LiveBlock {
            span,
            made: follows_now,
            uses: Clocks::default(),
            tenant,
            requested_bytes: bytes,
            note: request.note,
        });
        Ok(())
    }

    /// A live block, after making a stream follow its uses.
    fn last_use(&mut self, which: usize, stream: Option<usize>) -> Option<LiveBlock> {
        let at = which.checked_rem(self.live.len())?;
        let live = self.live.swap_remove(at);
        if let Some(stream) = stream {
            let slot = self.slot(stream);
            let mut device = self.device.lock();
            device.wait(slot, &live.uses);
            device.wait(slot, &live.made);
        }
        Some(live)
    }

    fn free(&mut self, live: LiveBlock, stream: Option<usize>) -> Answer {
        let freed = self.pool.free(live.span.address, self.place(stream));
        if freed != Ok(live.known()) {
            return Err(format!("{freed:?} for {live:?}"));
        }
        self.freed(&live);
        Ok(())
    }

    /// Removes a block from the live ones.
    fn freed(&mut self, live: &LiveBlock) {
        self.taken.remove(&live.span.address);
        self.tenant_bytes[usize::from(live.tenant)] -= live.span.bytes;
        self.counts.freed += 1;
        let mut uses = live.uses;
        join(&mut uses, &live.made);
        self.freed
            .insert(live.span.address, (live.span.end(), uses));
    }

    /// Removes a span from the freed memory; `f` is called with the uses of each part.
    fn cut_freed(&mut self, span: Span, mut f: impl FnMut(&Clocks)) {
        while let Some((&at, &(end, uses))) = self.freed.range(..span.end()).next_back() {
            if end <= span.address {
                break;
            }
            f(&uses);
            self.freed.remove(&at);
            if end > span.end() {
                self.freed.insert(span.end(), (end, uses));
            }
            if at < span.address {
                self.freed.insert(at, (span.address, uses));
            }
        }
    }

    /// Forgets unmapped memory; nothing may use it any more.
    fn forget_unmapped(&mut self) -> Answer {
        let device = self.device.lock();
        let bytes = device.mapped_bytes();
        let wrong = device.wrong.clone();
        drop(device);
        if let Some(wrong) = wrong {
            return Err(wrong);
        }
        // Summing up takes longer than most operations.
        if !self.steps.is_multiple_of(16) {
            return Ok(());
        }
        let pool = self.pool.usage().bytes;
        if pool != bytes {
            return Err(format!("the pool has {pool} bytes, {bytes} are mapped"));
        }
        Ok(())
    }

    /// Checks what holds after every operation.
    fn settled(&mut self) -> Answer {
        self.forget_unmapped()?;
        self.steps += 1;
        if self.steps.is_multiple_of(16) {
            self.adds_up()?;
        }
        let physical = self.device.lock().physical();
        if self.pool.budget().used_bytes() != physical {
            return Err(format!(
                "{physical} bytes, charged {}",
                self.pool.budget().used_bytes()
            ));
        }
        Ok(())
    }

    /// The pool's live bytes are those of the program.
    fn adds_up(&self) -> Answer {
        let usage = self.pool.usage();
        let live: u64 = self.tenant_bytes.iter().sum();
        if usage.live_bytes != live || usage.blocks != self.live.len() as u64 {
            return Err(format!("{live} bytes are live: {usage:?}"));
        }
        Ok(())
    }

    /// Checks all invariants; expensive.
    pub(crate) fn audit(&self) -> Answer {
        self.pool.audit()?;
        self.adds_up()?;
        let (mut blocks, mut notes) = (0, 0u64);
        self.pool.for_each_live(|live| {
            blocks += 1;
            notes += live.note;
        });
        let expected: u64 = self.live.iter().map(|live| live.note).sum();
        if (blocks, notes) != (self.live.len(), expected) {
            return Err(format!(
                "{blocks} blocks are shown instead of {}",
                self.live.len()
            ));
        }
        let device = self.device.lock();
        for span in &self.pinned {
            if !device.is_memory(*span) {
                return Err(format!("{span:?} is pinned and gone"));
            }
        }
        Ok(())
    }

    /// Ends the program: everything is freed, and nothing must remain.
    pub(crate) fn end(mut self) -> Answer {
        self.device.lock().capturing = false;
        for span in std::mem::take(&mut self.pinned) {
            self.pool.unpin(span.address);
        }
        while let Some(live) = self.live.pop() {
            self.free(live, None)?;
        }
        self.step(Op::Synchronise { stream: None })?;
        self.pool.trim();
        self.audit()?;
        let (usage, used) = (self.pool.usage(), self.pool.budget().used_bytes());
        match (usage.bytes, used, self.device.lock().physical()) {
            (0, 0, 0) => Ok(()),
            _ => Err(format!("{used} bytes are left: {usage:?}")),
        }
    }
}

/// Runs the program that bytes are: the kind of pool, then eight for each operation; the shadow
/// sees what the pool does with it. cargo-fuzz calls it too.
pub(crate) fn run_program(bytes: &[u8]) -> Result<(), String> {
    let Some((kind, bytes)) = bytes.split_first() else {
        return Ok(());
    };
    let is_odd = kind % 2 == 1;
    let mut world = World::new(if is_odd { Kind::Slabs } else { Kind::Pieces });
    for bits in bytes.as_chunks::<8>().0 {
        let op = Op::from_bits(u64::from_le_bytes(*bits));
        world.step(op).map_err(|wrong| format!("{op:?}: {wrong}"))?;
    }
    world.audit().and_then(|()| world.end())
}

//! Happens-before order of device work: vector clocks over streams, graph branches and the host.
//!
//! Every operation belongs to one actor and gets an [`OpId`] when the host enqueues it, so the
//! order is the one the program specifies, not the one of this run. An operation is ordered
//! after everything earlier on its actor, everything its actor waited for, and everything the
//! host knew to be complete when it enqueued the operation.
//!
//! The host is one actor although it has many threads: a thread may learn from another, unseen
//! by the driver, that a stream is done. One actor per thread would report hazards in correct
//! programs.
//!
//! A running kernel may synchronise with the host through words in shared memory. Then what the
//! host knows is ordered before all of the kernel, and all of the kernel before what the host
//! begins later: this may add order, and never loses any.
//!
//! Invariants: an actor's sequence numbers only grow; a clock never names an operation that was
//! not begun. An actor's number is reused only when the host already knows the old user to be
//! complete, so reuse adds no order.
//!
//! Elsewhere: recording operations (`device::stream`, `device::graph`), queries (`check`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, RwLock};

use rustc_hash::FxHashMap;

const ACTOR_BITS: u32 = 20;
const SEQ_BITS: u32 = 64 - ACTOR_BITS;
/// Epochs kept per actor; a query about an older operation is answered "ordered".
const EPOCHS_KEPT: usize = 4096;
/// The number of operations with a retained description.
const NAMES_KEPT: usize = 1 << 16;

/// An operation: a kernel, copy, fill, allocation or free. Zero is [`OpId::NONE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct OpId(u64);

impl OpId {
    /// No operation: before everything.
    pub const NONE: OpId = OpId(0);

    /// As 64 bits, for a shadow cell.
    #[must_use]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// From [`OpId::to_bits`].
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        OpId(bits)
    }

    /// Whether this is [`OpId::NONE`].
    #[must_use]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Whether the host does it itself.
    pub(crate) fn is_of_host(self) -> bool {
        !self.is_none() && self.actor() == ActorId::HOST.0 as usize
    }

    fn new(actor: ActorId, seq: u64) -> Self {
        OpId((u64::from(actor.0) << SEQ_BITS) | seq)
    }

    fn actor(self) -> usize {
        (self.0 >> SEQ_BITS) as usize
    }

    fn seq(self) -> u64 {
        self.0 & ((1 << SEQ_BITS) - 1)
    }
}

/// A sequence of operations that are ordered among themselves: a stream, a branch, the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActorId(u32);

impl ActorId {
    /// The host program, all its threads together.
    pub const HOST: ActorId = ActorId(0);
}

/// The kind of an operation, for [`Order::describe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpKind {
    /// A kernel by name; its launches are counted.
    Kernel(Arc<str>),
    /// Any other operation, as a driver call's name.
    Call(&'static str),
}

/// A point in an actor's sequence: everything it had begun or waited for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderSnapshot(Arc<VectorClock>);

/// Sorted by actor; an absent actor counts as 0.
type VectorClock = Vec<(u32, u64)>;

#[derive(Debug)]
struct ActorState {
    name: Arc<str>,
    seq: u64,
    /// Everything known besides the actor's own operations.
    clock: Arc<VectorClock>,
    /// The host's version when last joined.
    host_version: u64,
    /// (first operation, clock), ascending.
    epochs: VecDeque<(u64, Arc<VectorClock>)>,
    live: bool,
}

#[derive(Debug)]
struct OpName {
    what: OpKind,
    actor: Arc<str>,
    ordinal: u64,
}

#[derive(Debug, Default)]
struct OrderState {
    actors: Vec<ActorState>,
    free: Vec<u32>,
    /// Grows when the host learns or does something.
    host_version: u64,
    names: FxHashMap<OpId, OpName>,
    name_ring: VecDeque<OpId>,
    launches: FxHashMap<Arc<str>, u64>,
    calls: FxHashMap<&'static str, u64>,
}

/// The happens-before order of one process's device work. All methods take `&self`.
#[derive(Debug)]
pub struct Order {
    inner: RwLock<OrderState>,
}

impl Default for Order {
    fn default() -> Self {
        Self::new()
    }
}

impl Order {
    /// With the host as the only actor.
    #[must_use]
    pub fn new() -> Self {
        let mut inner = OrderState {
            host_version: 1,
            ..OrderState::default()
        };
        inner.actors.push(ActorState::new("the host".into()));
        Order {
            inner: RwLock::new(inner),
        }
    }

    /// A new actor; what the host knows now is before everything it will do.
    #[must_use]
    pub fn add_actor(&self, name: &str) -> ActorId {
        let mut inner = self.write();
        let known = inner.snapshot(ActorId::HOST).0;
        let reusable = inner
            .free
            .iter()
            .position(|&i| seq_of(&known, i) >= inner.actors[i as usize].seq);
        if let Some(at) = reusable {
            let i = inner.free.swap_remove(at);
            let actor = &mut inner.actors[i as usize];
            actor.name = name.into();
            actor.live = true;
            // The host knew the old user's last operation, so also all that was before it.
            actor.clock = Arc::new(known.iter().copied().filter(|e| e.0 != i).collect());
            return ActorId(i);
        }
        // Past the limit of numbers new actors share the last one: order is then assumed, never
        // denied.
        if inner.actors.len() < (1 << ACTOR_BITS) {
            let mut actor = ActorState::new(name.into());
            actor.clock = known;
            inner.actors.push(actor);
        }
        ActorId((inner.actors.len() - 1) as u32)
    }

    /// Ends an actor; its operations stay known.
    pub fn remove_actor(&self, actor: ActorId) {
        let mut inner = self.write();
        let a = &mut inner.actors[actor.0 as usize];
        if actor != ActorId::HOST && std::mem::replace(&mut a.live, false) {
            inner.free.push(actor.0);
        }
    }

    /// Begins an operation that the host enqueues on `actor` (or does itself, for
    /// [`ActorId::HOST`]).
    pub fn begin(&self, actor: ActorId, what: OpKind) -> OpId {
        let mut inner = self.write();
        if actor != ActorId::HOST {
            let version = inner.host_version;
            if inner.actors[actor.0 as usize].host_version != version {
                let host = inner.snapshot(ActorId::HOST);
                let a = &mut inner.actors[actor.0 as usize];
                a.host_version = version;
                a.join(actor.0, &host.0);
            }
        }
        inner.begin(actor, what)
    }

    /// Begins an operation with no predecessors but those that `actor` was given: a graph's node.
    pub fn begin_unhosted(&self, actor: ActorId, what: OpKind) -> OpId {
        self.write().begin(actor, what)
    }

    /// Everything begun on `actor` so far, and everything it waited for.
    #[must_use]
    pub fn snapshot(&self, actor: ActorId) -> OrderSnapshot {
        self.read().snapshot(actor)
    }

    /// Everything the host knows, and everything `actor` did: what an operation enqueued now would
    /// follow.
    #[must_use]
    pub fn snapshot_hosted(&self, actor: ActorId) -> OrderSnapshot {
        let inner = self.read();
        let mut clock = (*inner.snapshot(actor).0).clone();
        join(&mut clock, &inner.snapshot(ActorId::HOST).0, u32::MAX);
        OrderSnapshot(Arc::new(clock))
    }

    /// Everything up to `op` on its actor, `op` included.
    #[must_use]
    pub fn through(&self, op: OpId) -> OrderSnapshot {
        if op.is_none() {
            return OrderSnapshot::default();
        }
        let inner = self.read();
        let Some(actor) = inner.actors.get(op.actor()) else {
            return OrderSnapshot::default();
        };
        let at = actor.epochs.partition_point(|(from, _)| *from <= op.seq());
        let mut clock = if at == 0 {
            VectorClock::new()
        } else {
            (*actor.epochs[at - 1].1).clone()
        };
        join(&mut clock, &vec![(op.actor() as u32, op.seq())], u32::MAX);
        OrderSnapshot(Arc::new(clock))
    }

    /// The least point that follows all of `snapshots`.
    #[must_use]
    pub fn merge(&self, snapshots: &[OrderSnapshot]) -> OrderSnapshot {
        match snapshots {
            [] => OrderSnapshot::default(),
            [one] => one.clone(),
            [first, rest @ ..] => {
                let mut clock = (*first.0).clone();
                for snapshot in rest {
                    join(&mut clock, &snapshot.0, u32::MAX);
                }
                OrderSnapshot(Arc::new(clock))
            }
        }
    }

    /// Later operations of `actor` follow `snapshot`.
    pub fn wait(&self, actor: ActorId, snapshot: &OrderSnapshot) {
        let mut inner = self.write();
        let changed = inner.actors[actor.0 as usize].join(actor.0, &snapshot.0);
        if changed && actor == ActorId::HOST {
            inner.host_version += 1;
        }
    }

    /// Later operations of `actor` follow everything begun on `other`.
    pub fn wait_for(&self, actor: ActorId, other: ActorId) {
        if actor != other {
            let snapshot = self.snapshot(other);
            self.wait(actor, &snapshot);
        }
    }

    /// `op` and everything after it on its actor follow `snapshot`, found out only as `op` ran
    /// (a wait for a value in memory that was written by work enqueued later).
    pub fn wait_late(&self, op: OpId, snapshot: &OrderSnapshot) {
        let mut inner = self.write();
        let index = op.actor();
        let Some(actor) = inner.actors.get_mut(index) else {
            return;
        };
        let mut covered = false;
        for (from, clock) in &mut actor.epochs {
            if *from >= op.seq() {
                covered |= *from == op.seq();
                let mut joined = (**clock).clone();
                if join(&mut joined, &snapshot.0, index as u32) {
                    *clock = Arc::new(joined);
                }
            }
        }
        if !covered {
            let at = actor.epochs.partition_point(|(from, _)| *from <= op.seq());
            let mut clock = if at == 0 {
                VectorClock::new()
            } else {
                (*actor.epochs[at - 1].1).clone()
            };
            join(&mut clock, &snapshot.0, index as u32);
            actor.epochs.insert(at, (op.seq(), Arc::new(clock)));
        }
        actor.join(index as u32, &snapshot.0);
    }

    /// Running `op` has acquired what the host may have released to it: it is ordered after what
    /// the host knows now. Does nothing if that is what the host knew at version `known`; returns
    /// the current version.
    pub fn learn_from_host(&self, op: OpId, known: u64) -> u64 {
        let (version, snapshot) = {
            let inner = self.read();
            if inner.host_version == known {
                return known;
            }
            (inner.host_version, inner.snapshot(ActorId::HOST))
        };
        self.wait_late(op, &snapshot);
        version
    }

    /// Running `op` has released what it did to the host: what the host begins from now on is
    /// ordered after it. What `op` does later counts as ordered too, so a hazard may be missed and
    /// none is invented.
    pub fn tell_host(&self, op: OpId) {
        self.wait(ActorId::HOST, &self.through(op));
    }

    /// Whether `a` is ordered before `b` by the program. True for [`OpId::NONE`], false for `a ==
    /// b`.
    #[must_use]
    pub fn happens_before(&self, a: OpId, b: OpId) -> bool {
        if a.is_none() {
            return true;
        }
        if a.actor() == b.actor() {
            return a.seq() < b.seq();
        }
        let inner = self.read();
        let Some(actor) = inner.actors.get(b.actor()) else {
            return true;
        };
        let at = actor.epochs.partition_point(|(from, _)| *from <= b.seq());
        if at == 0 {
            // Nothing was known when `b` began, unless its epoch has been dropped.
            return actor.epochs.len() >= EPOCHS_KEPT;
        }
        seq_of(&actor.epochs[at - 1].1, a.actor() as u32) >= a.seq()
    }

    /// ``kernel `scale`, launch 3 on stream 2``; stable from run to run for a program of one host
    /// thread.
    #[must_use]
    pub fn describe(&self, op: OpId) -> String {
        let inner = self.read();
        match inner.names.get(&op) {
            Some(named) => named.to_string(),
            None if op.is_none() => "nothing".to_owned(),
            None => "an old operation".to_owned(),
        }
    }

    /// Whether `op` allocates memory in stream order, which touches none of it.
    pub(crate) fn is_allocation(&self, op: OpId) -> bool {
        let inner = self.read();
        let named = inner.names.get(&op);
        named.is_some_and(|named| {
            let of_pool = ["cuMemAllocAsync", "cuMemAllocFromPoolAsync"];
            matches!(named.what, OpKind::Call(call) if of_pool.contains(&call))
        })
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, OrderState> {
        self.inner
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, OrderState> {
        self.inner
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl OrderState {
    fn snapshot(&self, actor: ActorId) -> OrderSnapshot {
        let a = &self.actors[actor.0 as usize];
        if a.seq == 0 {
            return OrderSnapshot(a.clock.clone());
        }
        let mut clock = (*a.clock).clone();
        match clock.binary_search_by_key(&actor.0, |e| e.0) {
            Ok(i) => clock[i].1 = a.seq,
            Err(i) => clock.insert(i, (actor.0, a.seq)),
        }
        OrderSnapshot(Arc::new(clock))
    }

    fn begin(&mut self, actor: ActorId, what: OpKind) -> OpId {
        if actor == ActorId::HOST {
            self.host_version += 1;
        }
        let a = &mut self.actors[actor.0 as usize];
        a.seq += 1;
        let op = OpId::new(actor, a.seq);
        if a.epochs
            .back()
            .is_none_or(|(_, clock)| !Arc::ptr_eq(clock, &a.clock))
        {
            if a.epochs.len() == EPOCHS_KEPT {
                a.epochs.pop_front();
            }
            a.epochs.push_back((a.seq, a.clock.clone()));
        }
        let name = a.name.clone();
        let ordinal = match &what {
            OpKind::Kernel(kernel) => {
                let n = self.launches.entry(kernel.clone()).or_default();
                *n += 1;
                *n
            }
            OpKind::Call(call) => {
                let n = self.calls.entry(call).or_default();
                *n += 1;
                *n
            }
        };
        if self.name_ring.len() == NAMES_KEPT
            && let Some(old) = self.name_ring.pop_front()
        {
            self.names.remove(&old);
        }
        self.names.insert(
            op,
            OpName {
                what,
                actor: name,
                ordinal,
            },
        );
        self.name_ring.push_back(op);
        op
    }
}

impl ActorState {
    fn new(name: Arc<str>) -> Self {
        ActorState {
            name,
            seq: 0,
            clock: Arc::default(),
            host_version: 0,
            epochs: VecDeque::new(),
            live: true,
        }
    }

    /// Whether the clock changed.
    fn join(&mut self, own: u32, other: &VectorClock) -> bool {
        if other
            .iter()
            .all(|&(i, seq)| i == own || seq_of(&self.clock, i) >= seq)
        {
            return false;
        }
        let mut clock = (*self.clock).clone();
        join(&mut clock, other, own);
        self.clock = Arc::new(clock);
        true
    }
}

impl fmt::Display for OpName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            OpKind::Kernel(name) => write!(
                f,
                "kernel `{name}`, launch {} on {}",
                self.ordinal, self.actor
            ),
            OpKind::Call(name) => write!(f, "{name}, call {} on {}", self.ordinal, self.actor),
        }
    }
}

fn seq_of(clock: &VectorClock, actor: u32) -> u64 {
    clock
        .binary_search_by_key(&actor, |e| e.0)
        .map_or(0, |i| clock[i].1)
}

/// Raises `clock` to at least `other`, leaving out `own`. Whether it changed.
fn join(clock: &mut VectorClock, other: &VectorClock, own: u32) -> bool {
    let mut changed = false;
    for &(actor, seq) in other {
        if actor == own {
            continue;
        }
        match clock.binary_search_by_key(&actor, |e| e.0) {
            Ok(i) if clock[i].1 >= seq => {}
            Ok(i) => {
                clock[i].1 = seq;
                changed = true;
            }
            Err(i) => {
                clock.insert(i, (actor, seq));
                changed = true;
            }
        }
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn call(order: &Order, actor: ActorId) -> OpId {
        order.begin(actor, OpKind::Call("test"))
    }

    #[test]
    fn two_streams_are_unordered_until_an_event_joins_them() {
        let order = Order::new();
        let (s, t) = (order.add_actor("stream 1"), order.add_actor("stream 2"));
        let a = call(&order, s);
        let event = order.snapshot(s);
        let b = call(&order, t);
        assert!(!order.happens_before(a, b) && !order.happens_before(b, a));
        order.wait(t, &event);
        let later = call(&order, s);
        let c = call(&order, t);
        assert!(order.happens_before(a, c));
        assert!(!order.happens_before(later, c));
        assert!(
            !order.happens_before(a, b),
            "a wait orders only what comes after it"
        );
    }

    #[test]
    fn what_the_host_waited_for_is_before_everything_it_enqueues_later() {
        let order = Order::new();
        let (s, t) = (order.add_actor("stream 1"), order.add_actor("stream 2"));
        let a = call(&order, s);
        order.wait_for(ActorId::HOST, s);
        let b = call(&order, t);
        let free = call(&order, ActorId::HOST);
        let c = call(&order, s);
        assert!(order.happens_before(a, b) && order.happens_before(a, free));
        assert!(order.happens_before(free, c) && !order.happens_before(free, b));
    }

    #[test]
    fn a_late_wait_orders_work_that_was_already_enqueued_behind_it() {
        let order = Order::new();
        let (s, t) = (order.add_actor("stream 1"), order.add_actor("stream 2"));
        let before = call(&order, t);
        let wait = call(&order, t);
        let after = call(&order, t);
        let write = call(&order, s);
        assert!(!order.happens_before(write, after));
        order.wait_late(wait, &order.snapshot(s));
        assert!(order.happens_before(write, after) && order.happens_before(write, call(&order, t)));
        assert!(!order.happens_before(write, before));
    }

    #[test]
    fn a_number_is_reused_only_when_the_host_knows_the_old_user_to_be_complete() {
        let order = Order::new();
        let s = order.add_actor("stream 1");
        let a = call(&order, s);
        order.remove_actor(s);
        let t = order.add_actor("stream 2");
        assert_ne!(s, t);
        assert!(!order.happens_before(a, call(&order, t)));
        order.wait_for(ActorId::HOST, s);
        let u = order.add_actor("stream 3");
        assert_eq!(s, u);
        assert!(order.happens_before(a, call(&order, u)));
    }

    #[test]
    fn a_description_counts_launches_of_each_kernel() {
        let order = Order::new();
        let s = order.add_actor("stream 1");
        order.begin(s, OpKind::Kernel("scale".into()));
        let op = order.begin(s, OpKind::Kernel("scale".into()));
        assert_eq!(order.describe(op), "kernel `scale`, launch 2 on stream 1");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Begin(usize),
        BeginUnhosted(usize),
        HostOp,
        Record(usize),
        Wait(usize, usize),
        HostWait(usize),
        Renew(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let stream = 0..4usize;
        prop_oneof![
            6 => stream.clone().prop_map(Step::Begin),
            1 => stream.clone().prop_map(Step::BeginUnhosted),
            1 => Just(Step::HostOp),
            2 => stream.clone().prop_map(Step::Record),
            3 => (stream.clone(), 0..8usize).prop_map(|(s, e)| Step::Wait(s, e)),
            1 => (0..8usize).prop_map(Step::HostWait),
            1 => stream.prop_map(Step::Renew),
        ]
    }

    /// The same rules as explicit edges; order is reachability.
    #[derive(Default)]
    struct Naive {
        preds: Vec<Vec<usize>>,
    }

    impl Naive {
        fn begin(&mut self, frontiers: &[&Vec<usize>]) -> usize {
            self.preds
                .push(frontiers.iter().flat_map(|f| f.iter().copied()).collect());
            self.preds.len() - 1
        }

        fn reaches(&self, a: usize, b: usize) -> bool {
            let mut seen = vec![false; self.preds.len()];
            let mut todo = self.preds[b].clone();
            while let Some(n) = todo.pop() {
                if n == a {
                    return true;
                }
                if !std::mem::replace(&mut seen[n], true) {
                    todo.extend(&self.preds[n]);
                }
            }
            false
        }
    }

    proptest! {
        #[test]
        fn clocks_agree_with_reachability(steps in proptest::collection::vec(step(), 1..120)) {
            let order = Order::new();
            let mut actors: Vec<ActorId> = (0..4).map(|i| order.add_actor(&format!("stream {i}"))).collect();
            let mut naive = Naive::default();
            let mut frontiers: Vec<Vec<usize>> = vec![Vec::new(); 4];
            let mut host: Vec<usize> = Vec::new();
            let mut events: Vec<(OrderSnapshot, Vec<usize>)> = Vec::new();
            let mut ops: Vec<OpId> = Vec::new();
            for step in steps {
                match step {
                    Step::Begin(s) => {
                        ops.push(call(&order, actors[s]));
                        let n = naive.begin(&[&frontiers[s], &host]);
                        frontiers[s] = vec![n];
                    }
                    Step::BeginUnhosted(s) => {
                        ops.push(order.begin_unhosted(actors[s], OpKind::Call("node")));
                        let n = naive.begin(&[&frontiers[s]]);
                        frontiers[s] = vec![n];
                    }
                    Step::HostOp => {
                        ops.push(call(&order, ActorId::HOST));
                        let n = naive.begin(&[&host]);
                        host = vec![n];
                    }
                    Step::Record(s) => events.push((order.snapshot(actors[s]), frontiers[s].clone())),
                    Step::Wait(s, e) => if let Some((snap, front)) = events.get(e) {
                        order.wait(actors[s], snap);
                        frontiers[s].extend(front);
                    },
                    Step::HostWait(e) => if let Some((snap, front)) = events.get(e) {
                        order.wait(ActorId::HOST, snap);
                        host.extend(front);
                    },
                    Step::Renew(s) => {
                        order.remove_actor(actors[s]);
                        actors[s] = order.add_actor("stream anew");
                        frontiers[s].clone_from(&host);
                    }
                }
            }
            for (i, &a) in ops.iter().enumerate() {
                for (j, &b) in ops.iter().enumerate() {
                    prop_assert_eq!(order.happens_before(a, b), i != j && naive.reaches(i, j), "{} before {}", i, j);
                }
            }
        }
    }
}

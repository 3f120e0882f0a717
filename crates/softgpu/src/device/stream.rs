//! Streams: each a queue with a thread that executes it.
//!
//! An operation carries the tickets that it must wait for (events, the default stream's rule);
//! otherwise streams run independently. A thread starts with the first operation and ends after an
//! idle period.
//!
//! Invariants: an operation waits only for tickets drawn before it was enqueued, so waits cannot
//! form a cycle. Every ticket completes in the end, also after a fault: then operations are
//! skipped, not dropped.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::objects::{
    EventRecord, Health, QueueTicket, QueuedOp, SoftContext, SoftStream, StreamKind, StreamQueue,
    StreamRun, StreamWork,
};
use super::{CuResult, Machine, err, lock, machine};
use crate::order::{ActorId, OpId, OpKind};

const IDLE_BEFORE_EXIT: Duration = Duration::from_secs(2);

impl std::fmt::Debug for QueueTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.seq, self.stream.name)
    }
}

impl QueueTicket {
    pub(crate) fn is_done(&self) -> bool {
        lock(&self.stream.queue).completed >= self.seq
    }

    pub(crate) fn wait(&self) {
        drop(self.stream.completed(self.seq));
    }
}

/// How to enqueue.
pub(crate) struct Submission {
    pub(crate) what: OpKind,
    pub(crate) after: Vec<QueueTicket>,
    pub(crate) always: bool,
}

impl Submission {
    pub(crate) fn call(name: &'static str) -> Self {
        Submission {
            what: OpKind::Call(name),
            after: Vec::new(),
            always: false,
        }
    }

    pub(crate) fn always(mut self) -> Self {
        self.always = true;
        self
    }

    pub(crate) fn after(mut self, tickets: Vec<QueueTicket>) -> Self {
        self.after = tickets;
        self
    }
}

impl SoftStream {
    pub(crate) fn new(
        m: &Machine,
        ctx: &SoftContext,
        handle: usize,
        kind: StreamKind,
        priority: i32,
        name: String,
    ) -> Arc<Self> {
        Arc::new(SoftStream {
            handle,
            id: m.fresh_id(),
            ctx_id: ctx.id,
            ctx_handle: ctx.handle,
            device: ctx.device,
            kind,
            priority: AtomicI32::new(priority),
            actor: if m.config.checks {
                m.order.add_actor(&name)
            } else {
                ActorId::HOST
            },
            name,
            health: ctx.health.clone(),
            capture: Mutex::new(None),
            sync_policy: AtomicU64::new(1),
            queue: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
        })
    }

    /// Behind everything enqueued so far.
    pub(crate) fn ticket(self: &Arc<Self>) -> QueueTicket {
        QueueTicket {
            stream: self.clone(),
            seq: lock(&self.queue).submitted,
        }
    }

    fn blocking(&self) -> bool {
        self.kind != StreamKind::NonBlocking
    }

    /// The tickets that the default stream's rule adds, and the same edges in the order.
    fn implied(&self, m: &Machine, streams: &[Arc<SoftStream>], after: &mut Vec<QueueTicket>) {
        let mut follow = |other: &Arc<SoftStream>| {
            let ticket = other.ticket();
            if !ticket.is_done() {
                after.push(ticket);
            }
            if m.config.checks {
                m.order.wait_for(self.actor, other.actor);
            }
        };
        match self.kind {
            StreamKind::Legacy => {
                streams
                    .iter()
                    .filter(|s| s.blocking() && s.kind != StreamKind::Legacy)
                    .for_each(&mut follow);
            }
            StreamKind::NonBlocking => {}
            StreamKind::PerThread | StreamKind::Blocking => {
                streams
                    .iter()
                    .filter(|s| s.kind == StreamKind::Legacy)
                    .for_each(&mut follow);
            }
        }
    }

    /// A completed ticket, if there is no pending work that an operation enqueued now would wait
    /// for.
    pub(crate) fn idle_ticket(
        self: &Arc<Self>,
        m: &Machine,
        ctx: &SoftContext,
    ) -> Option<QueueTicket> {
        let streams = lock(&ctx.streams);
        let mut after = Vec::new();
        self.implied(m, &streams, &mut after);
        let ticket = self.ticket();
        (after.is_empty() && ticket.is_done()).then_some(ticket)
    }

    fn begin(&self, m: &Machine, what: OpKind) -> OpId {
        if m.config.checks {
            m.order.begin(self.actor, what)
        } else {
            OpId::NONE
        }
    }

    /// Enqueues `work`; `make` gets the operation's identity, on the calling thread.
    pub(crate) fn submit_with(
        self: &Arc<Self>,
        m: &'static Machine,
        ctx: &SoftContext,
        submission: Submission,
        make: impl FnOnce(OpId) -> StreamWork,
    ) -> QueueTicket {
        m.spend(self.device);
        let streams = lock(&ctx.streams);
        let Submission {
            what,
            mut after,
            always,
        } = submission;
        self.implied(m, &streams, &mut after);
        let op = self.begin(m, what);
        let work = make(op);
        let mut queue = lock(&self.queue);
        queue.submitted += 1;
        // The operation has its position: from here on others may enqueue, and work may run.
        drop(streams);
        let ticket = QueueTicket {
            stream: self.clone(),
            seq: queue.submitted,
        };
        queue.ops.push_back(QueuedOp {
            after,
            op,
            always,
            work: Some(work),
        });
        if queue.working {
            self.rouse(queue);
        } else {
            queue.working = true;
            drop(queue);
            let stream = self.clone();
            let spawned = std::thread::Builder::new()
                .name(self.name.clone())
                .stack_size(8 << 20)
                .spawn(move || stream.run(m, IDLE_BEFORE_EXIT));
            if spawned.is_err() {
                // No thread could be created: run it here.
                self.run(m, Duration::ZERO);
            }
        }
        ticket
    }

    pub(crate) fn submit(
        self: &Arc<Self>,
        m: &'static Machine,
        ctx: &SoftContext,
        submission: Submission,
        work: impl FnOnce(&StreamRun) + Send + 'static,
    ) -> QueueTicket {
        self.submit_with(m, ctx, submission, |_| Box::new(work))
    }

    /// Runs `work` in stream order and returns when it is done: on this thread if the stream is
    /// idle.
    pub(crate) fn run_now(
        self: &Arc<Self>,
        m: &'static Machine,
        ctx: &SoftContext,
        submission: Submission,
        work: impl FnOnce(&StreamRun) + Send,
    ) {
        m.spend(self.device);
        let streams = lock(&ctx.streams);
        let Submission {
            what,
            mut after,
            always,
        } = submission;
        self.implied(m, &streams, &mut after);
        let op = self.begin(m, what);
        let mut queue = lock(&self.queue);
        queue.submitted += 1;
        let seq = queue.submitted;
        drop(streams);
        // The position in the queue is ours; the next submission waits behind it.
        queue.ops.push_back(QueuedOp {
            after: Vec::new(),
            op,
            always,
            work: None,
        });
        drop(queue);
        drop(self.completed(seq - 1));
        for ticket in &after {
            ticket.wait();
        }
        if always || self.health.check().is_ok() {
            let running = StreamRun {
                op,
                health: &self.health,
            };
            guarded(&self.health, || work(&running));
        }
        if m.config.checks {
            let snapshot = m.order.snapshot(self.actor);
            m.order.wait(ActorId::HOST, &snapshot);
            m.print_findings();
        }
        let mut queue = lock(&self.queue);
        queue.ops.pop_front();
        queue.completed = seq;
        self.tell(&queue);
        self.rouse(queue);
    }

    /// Waits until `seq` operations are complete.
    fn completed(&self, seq: u64) -> MutexGuard<'_, StreamQueue> {
        let mut queue = lock(&self.queue);
        while queue.completed < seq {
            queue.waiting += 1;
            queue = self
                .done
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
            queue.waiting -= 1;
        }
        queue
    }

    /// Marks an operation as complete. Notifies only if a thread waits, which saves a system call.
    fn tell(&self, queue: &StreamQueue) {
        if queue.waiting > 0 {
            self.done.notify_all();
        }
    }

    /// Wakes the stream's thread if it sleeps; an awake one checks the queue before it sleeps.
    fn rouse(&self, mut queue: MutexGuard<'_, StreamQueue>) {
        if std::mem::take(&mut queue.asleep) {
            // After the lock is released, which the thread takes first.
            drop(queue);
            self.wake.notify_one();
        }
    }

    /// The stream's thread: runs queued work until none has arrived for `idle`.
    fn run(&self, m: &'static Machine, idle: Duration) {
        let mut queue = lock(&self.queue);
        loop {
            let ready = queue.ops.front().is_some_and(|next| next.work.is_some());
            let Some(next) = ready.then(|| queue.ops.pop_front()).flatten() else {
                if queue.closing && queue.ops.is_empty() {
                    break;
                }
                queue.asleep = true;
                let (again, timeout) = self
                    .wake
                    .wait_timeout(queue, idle)
                    .unwrap_or_else(PoisonError::into_inner);
                queue = again;
                queue.asleep = false;
                if timeout.timed_out() && queue.ops.is_empty() {
                    break;
                }
                continue;
            };
            drop(queue);
            for ticket in &next.after {
                ticket.wait();
            }
            if let Some(work) = next
                .work
                .filter(|_| next.always || self.health.check().is_ok())
            {
                let running = StreamRun {
                    op: next.op,
                    health: &self.health,
                };
                guarded(&self.health, || work(&running));
            }
            if m.config.checks {
                m.print_findings();
            }
            queue = lock(&self.queue);
            queue.completed += 1;
            self.tell(&queue);
        }
        queue.working = false;
    }

    /// Ends the thread once the queue is empty.
    pub(crate) fn close(&self, m: &Machine) {
        let mut queue = lock(&self.queue);
        queue.closing = true;
        self.rouse(queue);
        if m.config.checks {
            m.order.remove_actor(self.actor);
        }
    }

    /// Whether it was destroyed and its queue is empty.
    pub(crate) fn is_spent(&self) -> bool {
        let queue = lock(&self.queue);
        queue.closing && queue.completed == queue.submitted
    }

    /// Waits for everything enqueued so far, the default stream's rule included.
    pub(crate) fn synchronize(self: &Arc<Self>, m: &Machine, ctx: &SoftContext) -> CuResult {
        let (tickets, snapshot) = self.frontier(m, ctx);
        for ticket in &tickets {
            ticket.wait();
        }
        for s in &snapshot {
            m.order.wait(ActorId::HOST, s);
        }
        ctx.health.check()
    }

    pub(crate) fn query(self: &Arc<Self>, m: &Machine, ctx: &SoftContext) -> CuResult {
        let (tickets, snapshot) = self.frontier(m, ctx);
        if !tickets.iter().all(QueueTicket::is_done) {
            return Err(err::NOT_READY);
        }
        for s in &snapshot {
            m.order.wait(ActorId::HOST, s);
        }
        ctx.health.check()
    }

    fn frontier(
        self: &Arc<Self>,
        m: &Machine,
        ctx: &SoftContext,
    ) -> (Vec<QueueTicket>, Vec<crate::order::OrderSnapshot>) {
        let streams = lock(&ctx.streams);
        let mut tickets = vec![self.ticket()];
        if self.kind == StreamKind::Legacy {
            tickets.extend(
                streams
                    .iter()
                    .filter(|s| s.blocking() && s.kind != StreamKind::Legacy)
                    .map(SoftStream::ticket),
            );
        }
        let snapshots = if m.config.checks {
            tickets
                .iter()
                .map(|t| m.order.snapshot(t.stream.actor))
                .collect()
        } else {
            Vec::new()
        };
        (tickets, snapshots)
    }

    /// Makes everything enqueued later wait for a recorded event.
    pub(crate) fn wait_record(
        self: &Arc<Self>,
        m: &'static Machine,
        ctx: &SoftContext,
        record: &Arc<EventRecord>,
    ) {
        if m.config.checks {
            m.order.wait(self.actor, &record.snapshot);
        }
        let pending: Vec<QueueTicket> = record
            .tickets
            .iter()
            .filter(|t| !t.is_done())
            .cloned()
            .collect();
        let foreign = record.foreign.clone();
        if pending.is_empty() && foreign.is_none() {
            return;
        }
        let submission = Submission::call("cuStreamWaitEvent")
            .always()
            .after(pending);
        self.submit(m, ctx, submission, move |_| {
            if let Some(foreign) = foreign {
                foreign.wait();
            }
        });
    }
}

/// A new stream of `ctx`; only the ordinal among streams goes into its name, so that reports are
/// stable.
pub(crate) fn create(
    m: &Machine,
    ctx: &Arc<SoftContext>,
    flags: u32,
    priority: i32,
) -> CuResult<Arc<SoftStream>> {
    if flags & !1 != 0 {
        return Err(err::INVALID_VALUE);
    }
    let kind = if flags & 1 != 0 {
        StreamKind::NonBlocking
    } else {
        StreamKind::Blocking
    };
    let ordinal = STREAMS.fetch_add(1, Ordering::Relaxed) + 1;
    let (_, stream) = m.streams.insert_with(|handle| {
        SoftStream::new(
            m,
            ctx,
            handle,
            kind,
            priority.clamp(PRIORITY_GREATEST, 0),
            format!("stream {ordinal}"),
        )
    });
    let mut streams = lock(&ctx.streams);
    streams.retain(|s| !s.is_spent());
    streams.push(stream.clone());
    drop(streams);
    Ok(stream)
}

static STREAMS: AtomicU64 = AtomicU64::new(0);
pub(crate) const PRIORITY_GREATEST: i32 = -5;

/// `cuStreamDestroy`: returns at once; the stream's work runs to its end.
pub(crate) fn destroy(m: &Machine, handle: usize) -> CuResult {
    let stream = m.streams.remove(handle).ok_or(err::INVALID_HANDLE)?;
    m.captures.forget_stream(&stream);
    stream.close(m);
    // Until its work is complete, the context's waits and the default stream still include it.
    if let Some(ctx) = m.contexts.get(stream.ctx_handle) {
        lock(&ctx.streams).retain(|s| !s.is_spent());
    }
    Ok(())
}

/// The stream and the context it belongs to, for a call on the current thread.
pub(crate) fn of_call(
    handle: usize,
    per_thread: bool,
) -> CuResult<(&'static Machine, Arc<SoftContext>, Arc<SoftStream>)> {
    let m = machine()?;
    if handle > 2 {
        let stream = m.streams.get(handle).ok_or(err::INVALID_HANDLE)?;
        let ctx = m
            .contexts
            .get(stream.ctx_handle)
            .ok_or(err::CONTEXT_IS_DESTROYED)?;
        ctx.health.check()?;
        return Ok((m, ctx, stream));
    }
    let (m, ctx) = super::context::current()?;
    let stream = ctx.stream(m, handle, per_thread)?;
    Ok((m, ctx, stream))
}

/// Work that panics fails its context; the thread and the process go on.
fn guarded(health: &Health, work: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
        health.fail(err::UNKNOWN);
    }
}

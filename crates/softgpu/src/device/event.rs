//! Events: markers for "everything up to here" on one stream, or on all of a context.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::board::SharedEvent;
use super::objects::{
    CapturedEvent, EventRecord, ForeignRecording, QueueTicket, SoftContext, SoftEvent, SoftStream,
};
use super::stream::Submission;
use super::{CuResult, Machine, err, lock};
use crate::order::{ActorId, OrderSnapshot};

pub(crate) const DISABLE_TIMING: u32 = 2;
pub(crate) const INTERPROCESS: u32 = 4;

impl ForeignRecording {
    pub(crate) fn is_done(&self) -> bool {
        self.event.completed() >= self.number
    }

    pub(crate) fn wait(&self) {
        while !self.is_done() {
            if self.event.owner_is_gone() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

impl EventRecord {
    pub(crate) fn is_done(&self) -> bool {
        self.tickets.iter().all(QueueTicket::is_done)
            && self.foreign.as_ref().is_none_or(ForeignRecording::is_done)
    }

    pub(crate) fn wait(&self) {
        self.tickets.iter().for_each(QueueTicket::wait);
        if let Some(foreign) = &self.foreign {
            foreign.wait();
        }
    }
}

pub(crate) fn create(m: &Machine, ctx: &SoftContext, flags: u32) -> CuResult<Arc<SoftEvent>> {
    if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
        return Err(err::INVALID_VALUE);
    }
    Ok(add(m, ctx, flags, None))
}

pub(crate) fn add(
    m: &Machine,
    ctx: &SoftContext,
    flags: u32,
    imported: Option<Arc<SharedEvent>>,
) -> Arc<SoftEvent> {
    let (handle, event) = m.events.insert_with(|handle| {
        Arc::new(SoftEvent {
            handle,
            flags,
            ctx_id: ctx.id,
            ctx_handle: ctx.handle,
            state: Mutex::default(),
            imported: imported.is_some(),
            shared: Mutex::new(imported),
        })
    });
    lock(&ctx.events).insert(handle);
    event
}

pub(crate) fn destroy(m: &Machine, handle: usize) -> CuResult {
    let event = m.events.remove(handle).ok_or(err::INVALID_HANDLE)?;
    if let Some(ctx) = m.contexts.get(event.ctx_handle) {
        lock(&ctx.events).remove(&handle);
    }
    event.withdraw(m);
    Ok(())
}

impl SoftEvent {
    /// Withdraws it from other processes.
    pub(crate) fn withdraw(&self, m: &Machine) {
        if let Some(shared) = lock(&self.shared).take().filter(|_| !self.imported) {
            m.ipc.withdraw_event(&shared);
        }
    }

    /// `cuEventRecord` outside a capture.
    pub(crate) fn record(
        &self,
        m: &'static Machine,
        ctx: &SoftContext,
        stream: &Arc<SoftStream>,
    ) -> CuResult {
        if self.ctx_id != stream.ctx_id {
            return Err(err::INVALID_HANDLE);
        }
        self.record_on(m, ctx, std::slice::from_ref(stream));
        Ok(())
    }

    /// `cuCtxRecordEvent`.
    pub(crate) fn record_context(&self, m: &'static Machine, ctx: &SoftContext) {
        let streams: Vec<_> = lock(&ctx.streams).clone();
        self.record_on(m, ctx, &streams);
    }

    fn record_on(&self, m: &'static Machine, ctx: &SoftContext, streams: &[Arc<SoftStream>]) {
        let stamp = Arc::new(AtomicU64::new(0));
        let shared = lock(&self.shared).clone();
        let number = shared.as_ref().map(|s| s.begin_record());
        let mut snapshots = Vec::new();
        let tickets: Vec<QueueTicket> = streams
            .iter()
            .map(|stream| {
                let stamp = stamp.clone();
                let shared = shared.clone();
                if let Some(done) = stream.idle_ticket(m, ctx) {
                    stamp_now(m, &stamp);
                    if m.config.checks {
                        snapshots.push(m.order.snapshot(stream.actor));
                    }
                    return done;
                }
                let ticket = stream.submit(
                    m,
                    ctx,
                    Submission::call("cuEventRecord").always(),
                    move |_| {
                        stamp_now(m, &stamp);
                        if let (Some(shared), Some(number)) = (shared, number) {
                            shared.complete(number);
                        }
                    },
                );
                if m.config.checks {
                    snapshots.push(m.order.snapshot(stream.actor));
                }
                ticket
            })
            .collect();
        if let (Some(shared), Some(number)) = (&shared, number)
            && tickets.iter().all(QueueTicket::is_done)
        {
            shared.complete(number);
        }
        let snapshot = m.order.merge(&snapshots);
        let mut state = lock(&self.state);
        state.record = Some(Arc::new(EventRecord {
            tickets,
            snapshot,
            stamp,
            foreign: None,
        }));
        state.captured = None;
    }

    /// A graph's node recorded it: complete with the launch, stamped by the node.
    pub(crate) fn recorded_by_graph(
        &self,
        m: &Machine,
        stream: &SoftStream,
        ticket: QueueTicket,
        stamp: Arc<AtomicU64>,
    ) {
        let snapshot = if m.config.checks {
            m.order.snapshot(stream.actor)
        } else {
            OrderSnapshot::default()
        };
        let mut state = lock(&self.state);
        state.record = Some(Arc::new(EventRecord {
            tickets: vec![ticket],
            snapshot,
            stamp,
            foreign: None,
        }));
        state.captured = None;
    }

    pub(crate) fn set_captured(&self, captured: CapturedEvent) {
        lock(&self.state).captured = Some(captured);
    }

    pub(crate) fn captured(&self) -> Option<CapturedEvent> {
        lock(&self.state).captured.clone()
    }

    /// The last recording; `None` for an event that was never recorded.
    pub(crate) fn current(&self) -> Option<Arc<EventRecord>> {
        let own = lock(&self.state).record.clone();
        if own.is_none()
            && self.imported
            && let Some(event) = lock(&self.shared).clone()
        {
            let number = event.recorded();
            return (number > 0).then(|| {
                Arc::new(EventRecord {
                    tickets: Vec::new(),
                    snapshot: OrderSnapshot::default(),
                    stamp: Arc::default(),
                    foreign: Some(ForeignRecording { event, number }),
                })
            });
        }
        own
    }

    pub(crate) fn query(&self, m: &Machine) -> CuResult {
        match self.current() {
            Some(record) if !record.is_done() => Err(err::NOT_READY),
            Some(record) => {
                self.learnt(m, &record);
                Ok(())
            }
            None => Ok(()),
        }
    }

    pub(crate) fn synchronize(&self, m: &Machine) {
        if let Some(record) = self.current() {
            record.wait();
            self.learnt(m, &record);
        }
    }

    fn learnt(&self, m: &Machine, record: &EventRecord) {
        if m.config.checks {
            m.order.wait(ActorId::HOST, &record.snapshot);
        }
    }

    /// Milliseconds from this event to `end`.
    pub(crate) fn elapsed_ms(&self, end: &SoftEvent) -> CuResult<f32> {
        if (self.flags | end.flags) & DISABLE_TIMING != 0 {
            return Err(err::INVALID_HANDLE);
        }
        let (Some(a), Some(b)) = (self.current(), end.current()) else {
            return Err(err::INVALID_HANDLE);
        };
        if !a.is_done() || !b.is_done() {
            return Err(err::NOT_READY);
        }
        let ns = b.stamp.load(Ordering::Acquire) as i64 - a.stamp.load(Ordering::Acquire) as i64;
        Ok((ns as f64 / 1e6) as f32)
    }
}

/// Records the time; the latest of several stays.
pub(crate) fn stamp_now(m: &Machine, stamp: &AtomicU64) {
    stamp.fetch_max(
        (m.epoch.elapsed().as_nanos() as u64).max(1),
        Ordering::AcqRel,
    );
}

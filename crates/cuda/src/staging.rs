//! Staging ring: pinned memory for repeated small copies to the device without waiting.
//!
//! The memory is a ring buffer of slots, divided into a few segments. A copy takes the next slot;
//! an event is recorded after the last copy of a segment, and the segment is reused once its event
//! is done. So one event serves many copies.
//!
//! Invariant: a slot that a queued copy may still read is not written.

use bytemuck::Pod;

use crate::context::Context;
use crate::deferred::{self, DestroyOutcome};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pinned::PinnedBuffer;
use crate::slice::DeviceSliceMut;
use crate::stream::{Stream, WeakStream};
use crate::uses::StreamUses;
use crate::wait::WaitOutcome;

/// How many segments a ring has: while the host fills one, the copies of the others may be in
/// flight.
const SEGMENTS: usize = 4;
/// The alignment of slots in bytes.
const ALIGN_BYTES: usize = 64;

/// State of the copies of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SegmentState {
    /// None is in flight, or the segment is being filled.
    Free,
    /// Its event is recorded after them.
    Marked,
    /// They may be in flight, and no event is recorded after them.
    Unmarked,
}

/// A ring buffer of slots in pinned memory, for small copies to the device.
#[derive(Debug)]
pub struct Staging {
    /// `None` only while being dropped.
    memory: Option<PinnedBuffer<u8>>,
    slot_bytes: usize,
    /// Slots of a segment.
    segment_slots: usize,
    /// Slot that is written next; its last copy is done.
    next: usize,
    segments: [(Event, SegmentState); SEGMENTS],
    /// The stream of the copies from the segment of `next`.
    stream: Option<WeakStream>,
    uses: StreamUses,
}

impl Staging {
    /// At least `slots` slots for up to `slot_bytes` bytes each: three quarters of that many copies
    /// may be in flight.
    ///
    /// # Errors
    /// As [`PinnedBuffer::new`].
    pub fn new(context: &Context, slot_bytes: usize, slots: usize) -> Result<Self> {
        let segment_slots = slots.div_ceil(SEGMENTS).max(1);
        let slot_bytes = slot_bytes.max(1).checked_next_multiple_of(ALIGN_BYTES);
        let bytes = slot_bytes.and_then(|bytes| bytes.checked_mul(segment_slots * SEGMENTS));
        let (Some(slot_bytes), Some(bytes)) = (slot_bytes, bytes) else {
            return Err(Error::Value {
                operation: "make a ring of slots",
                reason: format!("{slots} slots of so many bytes are more than there can be"),
            });
        };
        let segment = || Event::untimed(context).map(|event| (event, SegmentState::Free));
        let segments = [segment()?, segment()?, segment()?, segment()?];
        Ok(Self {
            memory: Some(PinnedBuffer::new(context, bytes)?),
            slot_bytes,
            segment_slots,
            next: 0,
            segments,
            stream: None,
            uses: StreamUses::default(),
        })
    }

    /// The size of a slot in bytes.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Queues a copy of `values`, which must fit a slot and be as many as `to` has. They are read
    /// before this returns. Waits only if the device lags by a whole ring.
    ///
    /// # Errors
    /// [`Error::Length`]; [`Error::Value`] if they do not fit a slot;
    /// [`Error::Capturing`]; [`Error::Driver`].
    pub fn upload<T: Pod>(
        &mut self,
        to: &mut DeviceSliceMut<'_, T>,
        values: &[T],
        stream: &Stream,
    ) -> Result<()> {
        let bytes = std::mem::size_of_val(values);
        if values.len() != to.len() {
            return Err(Error::Length {
                operation: "send from a ring of slots",
                left_name: "the slice",
                left: values.len(),
                right_name: "the buffer",
                right: to.len(),
            });
        }
        if bytes > self.slot_bytes || align_of::<T>() > ALIGN_BYTES {
            return Err(Error::Value {
                operation: "send from a ring of slots",
                reason: format!(
                    "{bytes} bytes do not fit a slot of {} bytes",
                    self.slot_bytes
                ),
            });
        }
        if bytes == 0 {
            return Ok(());
        }
        to.allocation().note(stream)?;
        if !self.uses.has_recent(stream) {
            self.uses.note(stream);
        }
        self.change_stream(stream);
        let segment = self.next / self.segment_slots;
        if self.next.is_multiple_of(self.segment_slots) {
            self.wait_for(segment)?;
        }
        let entered = stream.enter_uncaptured(Error::Capturing {
            operation: "send from a ring of slots",
            advice: "send before the capture begins: a graph reads what is there when it runs",
        })?;
        let Some(memory) = &self.memory else {
            unreachable!("only `drop` takes it")
        };
        let slot = memory.address().wrapping_add(self.next * self.slot_bytes);
        // SAFETY: the slot is inside the memory, which has `slot_bytes` for each; its last copy is
        // done, or it had none, and nothing else refers to it. It is aligned to `ALIGN_BYTES`, and
        // `T` to no more.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), slot, bytes);
            to.queue_from_host(slot.cast_const().cast::<T>(), &entered)?;
        }
        drop(entered);
        self.stream = Some(stream.downgrade());
        self.next = (self.next + 1) % (self.segment_slots * SEGMENTS);
        if self.next.is_multiple_of(self.segment_slots) {
            self.mark(segment, stream);
        }
        Ok(())
    }

    /// Waits for the copies of a segment, which are the oldest of the ring.
    fn wait_for(&mut self, segment: usize) -> Result<()> {
        let (event, state) = &mut self.segments[segment];
        match state {
            SegmentState::Free => {}
            SegmentState::Marked => event.synchronize()?,
            SegmentState::Unmarked => {
                let advice = match self.uses.wait() {
                    WaitOutcome::Done => "",
                    WaitOutcome::KernelResident => {
                        "send in a stream made with Stream::new, not a per-thread stream"
                    }
                    _ => "send again when the captures in progress have ended",
                };
                if !advice.is_empty() {
                    return Err(Error::Capturing {
                        operation: "wait for the copies of a ring of slots",
                        advice,
                    });
                }
            }
        }
        *state = SegmentState::Free;
        Ok(())
    }

    /// Closes the segment that is being filled if its copies are in another stream.
    fn change_stream(&mut self, stream: &Stream) {
        if self.next.is_multiple_of(self.segment_slots) {
            return;
        }
        // A dropped stream has done its work.
        let Some(last) = self.stream.as_ref().and_then(WeakStream::upgrade) else {
            return;
        };
        if last != *stream {
            let segment = self.next / self.segment_slots;
            self.mark(segment, &last);
            self.next = (segment + 1) % SEGMENTS * self.segment_slots;
        }
    }

    /// Records the event of a segment, the copies of which were in `stream`.
    fn mark(&mut self, segment: usize, stream: &Stream) {
        let (event, state) = &mut self.segments[segment];
        *state = match event.record_uncaptured(stream) {
            Ok(true) => SegmentState::Marked,
            // The earlier work of a stream that is being captured is done.
            Ok(false) => SegmentState::Free,
            Err(_) => SegmentState::Unmarked,
        };
    }
}

impl Drop for Staging {
    /// Frees the memory once no copy may read it any more. Waits only for streams in which no event
    /// can be recorded now: default streams beside captures or of other threads; if this is dropped
    /// in a host callback, the next thread that allocates or waits does that.
    fn drop(&mut self) {
        let uses = std::mem::take(&mut self.uses);
        let mut memory = self.memory.take();
        // Where no event can be recorded, the work is waited for.
        let events = uses.record_events();
        deferred::destroy_or_defer(move || {
            let waited = match &events {
                None => uses.wait(),
                Some(events) => match events.iter().try_fold(true, |all, event| {
                    let is_done = event.is_done()?;
                    Ok(all && is_done)
                }) {
                    Ok(false) => return DestroyOutcome::Retry,
                    other => WaitOutcome::of(&other.map(drop)),
                },
            };
            match waited {
                WaitOutcome::Refused | WaitOutcome::KernelResident => {}
                WaitOutcome::Done => memory = None,
                // The copies may still be running.
                WaitOutcome::Lost => std::mem::forget(memory.take()),
            }
            waited.destroy_outcome()
        });
    }
}

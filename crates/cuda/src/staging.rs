//! Pinned memory through which the host sends small things to the device, over
//! and over, without waiting.
//!
//! The memory is a ring of slots, cut into a few parts. A copy takes the next
//! slot; behind the last copy of a part its stream is marked, and a part is
//! begun again when its mark is done. So there is one event for many copies.
//!
//! Invariant: nothing is written to a slot that a queued copy may still read.

use bytemuck::Pod;

use crate::buffer::DeviceSliceMut;
use crate::callback::{self, Destroyed};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pinned::PinnedBuffer;
use crate::stream::{Stream, Waited, WeakStream};
use crate::uses::Uses;

/// How many parts a ring has: while the host fills one, the copies of the
/// others may be under way.
const PARTS: usize = 4;
/// Slots begin at multiples of so many bytes.
const ALIGN_BYTES: usize = 64;

/// What is known of a part's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// None is under way, or it is being filled.
    Free,
    /// Its event is behind them.
    Marked,
    /// They may be under way, and no event is behind them.
    Unmarked,
}

/// A ring of slots in pinned memory, from which the device is sent small
/// things.
#[derive(Debug)]
pub struct Staging {
    /// `None` only while being dropped.
    memory: Option<PinnedBuffer<u8>>,
    slot_bytes: usize,
    /// Slots of a part.
    part_slots: usize,
    /// Slot that is written next; it was waited for.
    next: usize,
    parts: [(Event, Part); PARTS],
    /// The stream of the copies from the part that `next` is in.
    stream: Option<WeakStream>,
    uses: Uses,
}

impl Staging {
    /// At least `slots` slots for up to `slot_bytes` bytes each: so many copies
    /// may be under way, less a quarter of them.
    ///
    /// # Errors
    /// As [`PinnedBuffer::new`].
    pub fn new(context: &Context, slot_bytes: usize, slots: usize) -> Result<Self> {
        let part_slots = slots.div_ceil(PARTS).max(1);
        let slot_bytes = slot_bytes.max(1).checked_next_multiple_of(ALIGN_BYTES);
        let bytes = slot_bytes.and_then(|bytes| bytes.checked_mul(part_slots * PARTS));
        let (Some(slot_bytes), Some(bytes)) = (slot_bytes, bytes) else {
            return Err(Error::Value {
                operation: "make a ring of slots",
                reason: format!("{slots} slots of so many bytes are more than there can be"),
            });
        };
        let part = || Event::untimed(context).map(|mark| (mark, Part::Free));
        let parts = [part()?, part()?, part()?, part()?];
        Ok(Self {
            memory: Some(PinnedBuffer::new(context, bytes)?),
            slot_bytes,
            part_slots,
            next: 0,
            parts,
            stream: None,
            uses: Uses::default(),
        })
    }

    /// Bytes that fit a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Queues a copy of `values`, which must fit a slot and be as many as `to`
    /// has. They are read before this returns. Waits only if the device is a
    /// whole ring behind.
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
        let part = self.next / self.part_slots;
        if self.next.is_multiple_of(self.part_slots) {
            self.wait_for(part)?;
        }
        let entered = stream.enter_uncaptured(Error::Capturing {
            operation: "send from a ring of slots",
            advice: "send before the capture begins: a graph reads what is there when it runs",
        })?;
        let Some(memory) = &self.memory else {
            unreachable!("only `drop` takes it")
        };
        let slot = memory.address().wrapping_add(self.next * self.slot_bytes);
        // SAFETY: the slot is inside the memory, which has `slot_bytes` for
        // each; its last copy is done, or it had none, and nothing else knows
        // of it. It is aligned to what `T` was compared with.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), slot, bytes);
            to.queue_from_host(slot.cast_const().cast::<T>(), &entered)?;
        }
        drop(entered);
        self.stream = Some(stream.downgrade());
        self.next = (self.next + 1) % (self.part_slots * PARTS);
        if self.next.is_multiple_of(self.part_slots) {
            self.mark(part, stream);
        }
        Ok(())
    }

    /// Waits for the copies of a part, which are the ring's oldest.
    fn wait_for(&mut self, part: usize) -> Result<()> {
        let (mark, state) = &mut self.parts[part];
        match state {
            Part::Free => {}
            Part::Marked => mark.synchronize()?,
            Part::Unmarked => {
                let advice = match self.uses.wait() {
                    Waited::Done => "",
                    Waited::Stays => "send in a stream made with Stream::new, not a thread's own",
                    _ => "send again when the captures that run have ended",
                };
                if !advice.is_empty() {
                    return Err(Error::Capturing {
                        operation: "wait for the copies of a ring of slots",
                        advice,
                    });
                }
            }
        }
        *state = Part::Free;
        Ok(())
    }

    /// Ends the part that is being filled if its copies are in another stream.
    fn change_stream(&mut self, stream: &Stream) {
        if self.next.is_multiple_of(self.part_slots) {
            return;
        }
        // A stream that is gone has done its work.
        let Some(last) = self.stream.as_ref().and_then(WeakStream::upgrade) else {
            return;
        };
        if last != *stream {
            let part = self.next / self.part_slots;
            self.mark(part, &last);
            self.next = (part + 1) % PARTS * self.part_slots;
        }
    }

    /// Marks the end of a part, whose copies were in `stream`.
    fn mark(&mut self, part: usize, stream: &Stream) {
        let (mark, state) = &mut self.parts[part];
        *state = match mark.record_uncaptured(stream) {
            Ok(true) => Part::Marked,
            // A stream that is being captured has done its work from before.
            Ok(false) => Part::Free,
            Err(_) => Part::Unmarked,
        };
    }
}

impl Drop for Staging {
    /// What copies may still read goes when they are done. Waits only for streams that
    /// cannot be marked now: default streams beside captures or of other threads; and
    /// dropped in a host callback it is who allocates or waits next that does.
    fn drop(&mut self) {
        let uses = std::mem::take(&mut self.uses);
        let mut memory = self.memory.take();
        // Of streams that cannot be marked now the work is waited for.
        let marks = uses.marks();
        callback::outside(move || {
            let waited = match &marks {
                None => uses.wait(),
                Some(marks) => match marks.iter().try_fold(true, |all, mark| {
                    let is_done = mark.is_done()?;
                    Ok(all && is_done)
                }) {
                    Ok(false) => return Destroyed::NotYet,
                    other => Waited::of(&other.map(drop)),
                },
            };
            match waited {
                Waited::Refused | Waited::Stays => {}
                Waited::Done => memory = None,
                // Nothing says that the copies are over.
                Waited::Lost => std::mem::forget(memory.take()),
            }
            waited.so_far()
        });
    }
}

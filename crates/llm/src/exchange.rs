//! Arguments of steps on their way to the device, and chosen tokens on their way back.
//!
//! Invariant: copies are queued in the session's stream, before and behind the step that they are
//! of. So the arguments of a step can be uploaded while the one before it still runs.

use fercuda_cuda::{Context, DeviceBuffer, PinnedBuffer, Staging, Stream, Transfer};
use fercuda_runtime::{BufferId, Session};

use crate::error::LlmError;
use crate::step_inputs::StepInputs;

type Result<T> = std::result::Result<T, LlmError>;

/// Bytes of pinned memory for arguments, about.
const STAGING_BYTES: usize = 16 << 20;

fn of_device(error: fercuda_cuda::Error) -> LlmError {
    LlmError::Runtime(error.into())
}

/// Memory that chosen tokens and their logits are copied to.
type ChoiceMemory = (PinnedBuffer<i64>, PinnedBuffer<f32>);

/// What a step chooses, on its way to the host.
#[derive(Debug)]
pub(crate) struct PendingChoices {
    best: Transfer<PinnedBuffer<i64>>,
    values: Transfer<PinnedBuffer<f32>>,
}

impl PendingChoices {
    /// Waits for the copies.
    fn memory(self) -> Result<ChoiceMemory> {
        let best = self.best.wait().map_err(of_device)?;
        let values = self.values.wait().map_err(of_device)?;
        Ok((best, values))
    }
}

fn choice_memory(context: &Context, rows: usize) -> Result<ChoiceMemory> {
    let best = PinnedBuffer::new(context, rows).map_err(of_device)?;
    let values = PinnedBuffer::new(context, rows).map_err(of_device)?;
    Ok((best, values))
}

/// The argument block, and what steps choose, on the device.
#[derive(Debug)]
pub(crate) struct StepExchange {
    context: Context,
    arguments: DeviceBuffer<i32>,
    staging: Staging,
    best: DeviceBuffer<i64>,
    values: DeviceBuffer<f32>,
    /// Memory of copies that have ended.
    spare: Vec<ChoiceMemory>,
    /// Copies that are not asked for any more.
    abandoned: Vec<PendingChoices>,
}

impl StepExchange {
    /// The exchange by these buffers of a session: of arguments, of the most likely token of each
    /// row, and of its logit.
    pub(crate) fn new(
        session: &Session,
        inputs: &StepInputs,
        [arguments, best, values]: [BufferId; 3],
    ) -> Result<Self> {
        // All that steps may read is defined, also what no request has yet.
        session.upload(arguments, &inputs.values)?;
        let context = session.stream().context().clone();
        let slot_bytes = inputs.largest_part() * size_of::<i32>();
        // A step uploads a row of the table for each request at most.
        let most = inputs.limits.requests as usize + 8;
        let slots = (STAGING_BYTES / slot_bytes.max(1)).clamp(4, most);
        let staging = Staging::new(&context, slot_bytes, slots).map_err(of_device)?;
        let rows = inputs.limits.rows as usize;
        // Of a step whose choices are waited for, and of the one behind it.
        let spare = (0..2).map(|_| choice_memory(&context, rows));
        Ok(Self {
            staging,
            spare: spare.collect::<Result<_>>()?,
            abandoned: Vec::new(),
            context,
            arguments: session.memory(arguments)?.cast().map_err(of_device)?,
            best: session.memory(best)?.cast().map_err(of_device)?,
            values: session.memory(values)?.cast().map_err(of_device)?,
        })
    }

    /// Queues the upload of what has changed. After an error nothing counts as uploaded.
    pub(crate) fn upload(&mut self, inputs: &mut StepInputs, stream: &Stream) -> Result<()> {
        for part in inputs.take_changed() {
            let values = &inputs.values[part.clone()];
            let to = self.arguments.slice_mut(part);
            let queued = to.and_then(|mut to| self.staging.upload(&mut to, values, stream));
            if let Err(error) = queued {
                inputs.forget_uploaded();
                return Err(of_device(error));
            }
        }
        Ok(())
    }

    /// Queues the copy of what the step before chooses.
    pub(crate) fn copy_choices(&mut self, stream: &Stream) -> Result<PendingChoices> {
        let (best, values) = match self.spare.pop() {
            Some(memory) => memory,
            None => choice_memory(&self.context, self.best.len())?,
        };
        let best = self.best.as_slice().download(best, stream);
        let values = self.values.as_slice().download(values, stream);
        Ok(PendingChoices {
            best: best.map_err(of_device)?,
            values: values.map_err(of_device)?,
        })
    }

    /// Waits for the most likely tokens of the first rows, with their logits.
    pub(crate) fn choices(
        &mut self,
        pending: PendingChoices,
        rows: usize,
    ) -> Result<Vec<(u32, f32)>> {
        for abandoned in std::mem::take(&mut self.abandoned) {
            self.spare.push(abandoned.memory()?);
        }
        let (best, values) = pending.memory()?;
        let both = best.iter().zip(values.iter()).take(rows);
        let both = both.map(|(token, value)| (*token as u32, *value)).collect();
        self.spare.push((best, values));
        Ok(both)
    }

    /// Does without what a step chooses. Its memory is of use again behind the next one's.
    pub(crate) fn abandon(&mut self, pending: PendingChoices) {
        self.abandoned.push(pending);
    }
}

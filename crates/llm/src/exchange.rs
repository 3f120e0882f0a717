//! Arguments of steps on their way to the device, and chosen tokens on their way back.
//!
//! Invariant: copies are queued in the session's stream, before and behind the step that they are
//! of. So the arguments of a step can be uploaded while the one before it still runs.

use fercuda_cuda::{Context, DeviceBuffer, PinnedBuffer, Staging, Stream, Transfer};
use fercuda_runtime::{BufferId, Session};

use crate::error::LlmError;
use crate::step_inputs::StepInputs;

type Result<T> = std::result::Result<T, LlmError>;

/// Copies of arguments that may be in flight, about.
const COPIES: usize = 16;

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
        Ok(Self {
            staging: Staging::new(&context, slot_bytes, COPIES).map_err(of_device)?,
            context,
            arguments: session.memory(arguments)?.cast().map_err(of_device)?,
            best: session.memory(best)?.cast().map_err(of_device)?,
            values: session.memory(values)?.cast().map_err(of_device)?,
            spare: Vec::new(),
        })
    }

    /// Queues the upload of what has changed.
    pub(crate) fn upload(&mut self, inputs: &mut StepInputs, stream: &Stream) -> Result<()> {
        for part in inputs.take_changed() {
            let values = &inputs.values[part.clone()];
            let mut to = self.arguments.slice_mut(part).map_err(of_device)?;
            let queued = self.staging.upload(&mut to, values, stream);
            queued.map_err(of_device)?;
        }
        Ok(())
    }

    /// Queues the copy of what the step before chooses.
    pub(crate) fn copy_choices(&mut self, stream: &Stream) -> Result<PendingChoices> {
        let (best, values) = match self.spare.pop() {
            Some(memory) => memory,
            None => {
                let count = self.best.len();
                let best = PinnedBuffer::new(&self.context, count).map_err(of_device)?;
                let values = PinnedBuffer::new(&self.context, count).map_err(of_device)?;
                (best, values)
            }
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
        let best = pending.best.wait().map_err(of_device)?;
        let values = pending.values.wait().map_err(of_device)?;
        let both = best.iter().zip(values.iter()).take(rows);
        let both = both.map(|(token, value)| (*token as u32, *value)).collect();
        self.spare.push((best, values));
        Ok(both)
    }
}

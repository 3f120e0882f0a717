//! Measured choice of a kernel: the times of all that compute an op on given layouts, and the
//! fastest, kept for later plans.
//!
//! Invariant: all kernels run on the same memory in turns, so that what slows the device slows all.
//! Elsewhere: keeping the choice (`choices`), plans by it ([`crate::KernelPolicy::Measured`]).

use std::time::Duration;

use fercuda_cuda::{Context, Event, Stream};
use fercuda_jit::BoundArg;
use fercuda_kernels::KernelError;
use fercuda_tensor::Layout;

use crate::descriptor::OpDescriptor;
use crate::error::OpError;
use crate::kernels::{Backend, KERNELS};
use crate::plan::{KernelPolicy, OpDevice, OpPlan, PRECEDED, RejectedKernel};

/// Time that a sample takes at least, so that the resolution of events does not matter.
const SAMPLE: Duration = Duration::from_micros(200);
/// Most runs of a sample.
const MOST_RUNS: u32 = 64;
/// Samples of each kernel; the median counts.
const SAMPLES: usize = 11;

/// Time of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredKernel {
    /// Its name for [`KernelPolicy::Force`]: of a library with the number of an algorithm, in the
    /// library's own order.
    pub id: String,
    /// Median of a run, by the device's clock.
    pub time: Duration,
    /// Size of its workspace, in bytes.
    pub workspace_bytes: u64,
}

/// Times of an op's kernels, the fastest first.
#[derive(Clone, Debug)]
pub struct OpMeasurement {
    /// Those that computed it.
    pub kernels: Vec<MeasuredKernel>,
    /// The others, with reasons.
    pub rejected: Vec<RejectedKernel>,
}

/// Memory of one run: operands and outputs.
#[derive(Clone, Debug)]
pub struct TuneSet<'a> {
    /// In the op's order.
    pub operands: Vec<BoundArg<'a>>,
    /// In the op's order; overwritten.
    pub outputs: Vec<BoundArg<'a>>,
}

/// All kernels that compute an op on given layouts, compiled.
#[derive(Debug)]
pub struct OpTuner<'d> {
    device: &'d OpDevice,
    op: &'static str,
    request: String,
    plans: Vec<(String, OpPlan)>,
    rejected: Vec<RejectedKernel>,
}

impl<'d> OpTuner<'d> {
    /// Compiles each kernel that supports the op on these layouts; without layouts of outputs these
    /// are contiguous.
    ///
    /// # Errors
    /// As for [`OpPlan::new`], if no kernel does.
    pub fn new(
        device: &'d OpDevice,
        op: &OpDescriptor,
        operands: &[Layout],
        outputs: &[Layout],
    ) -> Result<Self, OpError> {
        // The error of bad operands is the same for all kernels.
        let chosen = OpPlan::new(device, op, operands, outputs, KernelPolicy::Auto)?;
        let outputs = chosen.outputs().to_vec();
        let mut tuner = Self {
            device,
            op: op.name(),
            request: device.request(op, operands, &outputs),
            plans: Vec::new(),
            rejected: Vec::new(),
        };
        let row = op.row();
        for kernel in KERNELS.iter().filter(|kernel| (kernel.computes)(row)) {
            let force = |id: &str| {
                let policy = KernelPolicy::Force(id);
                OpPlan::new(device, op, operands, &outputs, policy)
            };
            let first = match force(kernel.id) {
                Ok(plan) => plan,
                Err(error) => {
                    // Its own reason, where it does not support the request.
                    let mut own = chosen.sku().rejected.iter();
                    let own = own.find(|it| it.id == kernel.id && it.reason != PRECEDED);
                    let (id, reason) = (kernel.id, own.map(|it| it.reason.clone()));
                    let reason = reason.unwrap_or_else(|| error.to_string());
                    tuner.rejected.push(RejectedKernel { id, reason });
                    continue;
                }
            };
            if kernel.backend != Backend::CublasLt {
                tuner.plans.push((kernel.id.to_owned(), first));
                continue;
            }
            for number in 0..first.algorithms() {
                let id = format!("{}:{number}", kernel.id);
                let plan = force(&id)?;
                tuner.plans.push((id, plan));
            }
        }
        Ok(tuner)
    }

    /// Layouts of the outputs.
    pub fn outputs(&self) -> &[Layout] {
        self.plans.first().map_or(&[], |(_, plan)| plan.outputs())
    }

    /// Size of the workspace that any of the kernels needs, which is aligned to 16.
    pub fn workspace_bytes(&self) -> u64 {
        let all = self.plans.iter().map(|(_, plan)| plan.workspace_bytes());
        all.max().unwrap_or_default()
    }

    /// Runs all kernels in turns on these sets of memory, one after another, waits, and keeps the
    /// fastest. Sets that are together larger than the cache show the times of memory that is not
    /// in it.
    ///
    /// # Errors
    /// [`OpError::Workspace`], [`OpError::Run`]; [`OpError::Device`] if times cannot be read.
    pub fn measure(
        &self,
        stream: &Stream,
        sets: &[TuneSet<'_>],
        workspace: Option<BoundArg<'_>>,
    ) -> Result<OpMeasurement, OpError> {
        let mut rejected = self.rejected.clone();
        let mut timer = SetTimer {
            context: self.device.context(),
            stream,
            sets,
            workspace,
            next: 0,
        };
        let mut running = Vec::new();
        for (id, plan) in &self.plans {
            // The first run loads the code.
            let refused = plan.refused_runs();
            timer.time(plan, 1)?.elapsed()?;
            let once = timer.time(plan, 1)?.elapsed()?;
            if plan.refused_runs() > refused {
                let reason = format!("{id} was refused by the library when it was run");
                let id = plan.sku().id;
                rejected.push(RejectedKernel { id, reason });
                continue;
            }
            let runs = SAMPLE.as_secs_f64() / once.as_secs_f64().max(1e-9);
            let runs = (runs.ceil() as u32).clamp(1, MOST_RUNS);
            running.push((id, plan, runs, Vec::new()));
        }
        for _ in 0..SAMPLES {
            let mut pending = Vec::new();
            for (_, plan, runs, _) in &running {
                pending.push(timer.time(plan, *runs)?);
            }
            for ((.., runs, times), pair) in running.iter_mut().zip(pending) {
                times.push(pair.elapsed()? / *runs);
            }
        }
        let kernels = running.into_iter().map(|(id, plan, _, mut times)| {
            times.sort_unstable();
            MeasuredKernel {
                id: id.clone(),
                time: times[times.len() / 2],
                workspace_bytes: plan.workspace_bytes(),
            }
        });
        let mut kernels: Vec<_> = kernels.collect();
        kernels.sort_by_key(|kernel| kernel.time);
        let Some(fastest) = kernels.first() else {
            let reasons = rejected.iter().map(|it| it.reason.as_str());
            let reasons = reasons.collect::<Vec<_>>().join("; ");
            let (op, hint) = (self.op, "KernelPolicy::Auto".to_owned());
            return Err(OpError::Kernel { op, reasons, hint });
        };
        let choices = self.device.choices();
        choices.keep(self.request.clone(), &fastest.id);
        Ok(OpMeasurement { kernels, rejected })
    }
}

/// Runs of plans between two events.
struct SetTimer<'a, 'b> {
    context: &'a Context,
    stream: &'a Stream,
    sets: &'a [TuneSet<'b>],
    workspace: Option<BoundArg<'b>>,
    next: usize,
}

/// The events before and after some runs.
struct EventPair(Event, Event);

impl EventPair {
    /// Waits for the second one.
    fn elapsed(&self) -> Result<Duration, OpError> {
        let read = || {
            self.1.synchronize()?;
            self.1.since(&self.0)
        };
        read().map_err(|error| OpError::Device(KernelError::Cuda(error)))
    }
}

impl SetTimer<'_, '_> {
    fn time(&mut self, plan: &OpPlan, runs: u32) -> Result<EventPair, OpError> {
        let failed = |error| OpError::Device(KernelError::Cuda(error));
        let event = || Event::timed(self.context).map_err(failed);
        let pair = EventPair(event()?, event()?);
        pair.0.record(self.stream).map_err(failed)?;
        for _ in 0..runs {
            let at = self.next % self.sets.len().max(1);
            self.next = at + 1;
            let Some(set) = self.sets.get(at) else { break };
            plan.run(self.stream, &set.operands, &set.outputs, self.workspace)?;
        }
        pair.1.record(self.stream).map_err(failed)?;
        Ok(pair)
    }
}

//! Ops planned and bound to memory, to be run in order.
//!
//! Invariant: what is recorded holds its plans and its memory, so it can be run while it lives.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fercuda_cuda::{Context, Event, Stream};
use fercuda_jit::BoundArg;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpDevice, OpPlan};
use fercuda_runtime::{BoundBuffer, Regime, Session};
use fercuda_tensor::{Dtype, Layout};

use crate::error::LlmError;

type Result<T> = std::result::Result<T, LlmError>;

/// Elements in device memory.
#[derive(Clone, Debug)]
pub(crate) struct DeviceTensor {
    memory: Arc<BoundBuffer>,
    layout: Layout,
    /// Of the first element, in bytes.
    first: u64,
}

impl DeviceTensor {
    /// Reserves memory for elements in order.
    pub(crate) fn reserve(session: &Session, dtype: Dtype, shape: &[u64]) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape)?;
        let id = session.alloc(layout, Regime::Pool)?;
        Ok(Self {
            memory: Arc::new(session.bind(id)?),
            layout,
            first: 0,
        })
    }

    /// Memory of a session's buffer.
    pub(crate) fn of(memory: BoundBuffer) -> Self {
        Self {
            layout: *memory.layout(),
            memory: Arc::new(memory),
            first: 0,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn shape(&self) -> &[u64] {
        self.layout.shape()
    }

    /// The same elements in another shape.
    pub(crate) fn reshape(&self, shape: &[u64]) -> Result<Self> {
        Ok(Self {
            layout: self.layout.reshape(shape)?,
            ..self.clone()
        })
    }

    /// The first elements of the first dimension.
    pub(crate) fn first(&self, count: u64) -> Result<Self> {
        self.part(0..count)
    }

    /// Elements of the last of two dimensions.
    pub(crate) fn columns(&self, range: std::ops::Range<u64>) -> Result<Self> {
        let (layout, offset) = self.layout.slice(1, range, 1)?;
        Ok(Self {
            layout,
            first: self.first + offset.unsigned_abs(),
            ..self.clone()
        })
    }

    /// Elements of the first dimension.
    pub(crate) fn part(&self, range: std::ops::Range<u64>) -> Result<Self> {
        let (layout, offset) = self.layout.slice(0, range, 1)?;
        Ok(Self {
            layout,
            // Strides are not negative here.
            first: self.first + offset.unsigned_abs(),
            ..self.clone()
        })
    }

    pub(crate) fn arg(&self) -> BoundArg<'_> {
        self.memory.arg().skip(self.first)
    }
}

/// One op with its memory.
#[derive(Debug)]
struct BoundRun {
    name: &'static str,
    plan: Arc<OpPlan>,
    operands: Vec<DeviceTensor>,
    outputs: Vec<DeviceTensor>,
}

impl BoundRun {
    fn queue(&self, stream: &Stream, workspace: Option<BoundArg<'_>>) -> Result<()> {
        let operands: Vec<BoundArg<'_>> = self.operands.iter().map(DeviceTensor::arg).collect();
        let outputs: Vec<BoundArg<'_>> = self.outputs.iter().map(DeviceTensor::arg).collect();
        Ok(self.plan.run(stream, &operands, &outputs, workspace)?)
    }
}

/// A plan is made once for an op and layouts.
type StepPlanKey = (OpDescriptor, Vec<Layout>, Vec<Layout>);

/// Plans of a device, by op and layouts.
#[derive(Debug)]
pub(crate) struct Planner {
    device: OpDevice,
    plans: HashMap<StepPlanKey, Arc<OpPlan>>,
}

impl Planner {
    pub(crate) fn new(device: OpDevice) -> Self {
        Self {
            device,
            plans: HashMap::new(),
        }
    }

    /// The context of the device.
    pub(crate) fn context(&self) -> &Context {
        self.device.context()
    }

    fn plan(&mut self, key: StepPlanKey) -> Result<Arc<OpPlan>> {
        if let Some(known) = self.plans.get(&key) {
            return Ok(known.clone());
        }
        let (op, operands, outputs) = &key;
        let plan = OpPlan::new(&self.device, op, operands, outputs, KernelPolicy::Auto)?;
        let plan = Arc::new(plan);
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }
}

/// Ops in order.
#[derive(Debug, Default)]
pub(crate) struct RecordedOps {
    runs: Vec<BoundRun>,
    workspace: Option<DeviceTensor>,
}

impl RecordedOps {
    /// Adds an op on operands, whose results are written to outputs.
    pub(crate) fn add(
        &mut self,
        planner: &mut Planner,
        op: OpDescriptor,
        operands: &[&DeviceTensor],
        outputs: &[&DeviceTensor],
    ) -> Result<()> {
        let layouts = |all: &[&DeviceTensor]| all.iter().map(|it| it.layout).collect();
        let name = op.row().name;
        let plan = planner.plan((op, layouts(operands), layouts(outputs)))?;
        let owned = |all: &[&DeviceTensor]| all.iter().map(|it| (*it).clone()).collect();
        self.runs.push(BoundRun {
            name,
            plan,
            operands: owned(operands),
            outputs: owned(outputs),
        });
        Ok(())
    }

    /// Workspace that the largest of its plans needs.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        let all = self.runs.iter().map(|run| run.plan.workspace_bytes());
        all.max().unwrap_or(0)
    }

    /// Has all of its ops use that workspace.
    pub(crate) fn use_workspace(&mut self, workspace: DeviceTensor) {
        self.workspace = Some(workspace);
    }

    /// Runs its ops with an event between each two, so often; names of the ops and of their
    /// kernels, with the median of their times. Events make them slower.
    pub(crate) fn times(
        &self,
        context: &Context,
        stream: &Stream,
        rounds: usize,
    ) -> Result<Vec<(&'static str, &'static str, Duration)>> {
        let device = |error: fercuda_cuda::Error| LlmError::Runtime(error.into());
        let workspace = self.workspace.as_ref().map(DeviceTensor::arg);
        let mut all: Vec<Vec<Duration>> = vec![Vec::new(); self.runs.len()];
        for _ in 0..rounds {
            let mut events = vec![Event::timed(context).map_err(device)?];
            events[0].record(stream).map_err(device)?;
            for run in &self.runs {
                run.queue(stream, workspace)?;
                let event = Event::timed(context).map_err(device)?;
                event.record(stream).map_err(device)?;
                events.push(event);
            }
            stream.synchronize().map_err(device)?;
            for (times, pair) in all.iter_mut().zip(events.windows(2)) {
                times.push(pair[1].since(&pair[0]).map_err(device)?);
            }
        }
        let median = |mut times: Vec<Duration>| {
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default()
        };
        let runs = self.runs.iter().zip(all);
        Ok(runs
            .map(|(run, times)| (run.name, run.plan.sku().id, median(times)))
            .collect())
    }

    /// Queues all of its ops in a stream.
    pub(crate) fn run(&self, stream: &Stream) -> Result<()> {
        let workspace = self.workspace.as_ref().map(DeviceTensor::arg);
        for run in &self.runs {
            run.queue(stream, workspace)?;
        }
        Ok(())
    }
}

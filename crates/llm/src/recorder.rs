//! Ops planned and bound to memory, to be run in order.
//!
//! Invariant: what is recorded holds its plans and its memory, so it can be run while it lives.

use std::collections::HashMap;
use std::sync::Arc;

use fercuda_cuda::Stream;
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
    plan: Arc<OpPlan>,
    operands: Vec<DeviceTensor>,
    outputs: Vec<DeviceTensor>,
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
        let plan = planner.plan((op, layouts(operands), layouts(outputs)))?;
        let owned = |all: &[&DeviceTensor]| all.iter().map(|it| (*it).clone()).collect();
        self.runs.push(BoundRun {
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

    /// Queues all of its ops in a stream.
    pub(crate) fn run(&self, stream: &Stream) -> Result<()> {
        let workspace = self.workspace.as_ref().map(DeviceTensor::arg);
        for run in &self.runs {
            let operands: Vec<BoundArg<'_>> = run.operands.iter().map(DeviceTensor::arg).collect();
            let outputs: Vec<BoundArg<'_>> = run.outputs.iter().map(DeviceTensor::arg).collect();
            run.plan.run(stream, &operands, &outputs, workspace)?;
        }
        Ok(())
    }
}

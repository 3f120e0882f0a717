//! Plans of transforms.

use bytemuck::Pod;
use fercuda_cuda::{Context, DeviceSlice, DeviceSliceMut, KernelArg, QueuedResource, Stream};

use super::ffi::{CheckedSignals, FftPlan};
use super::library::CufftLibrary;
use super::spec::{CheckedTransform, TransformDirection, TransformKind, TransformSpec};
use crate::error::{Error, Result};
use crate::operand::{FULL_ALIGNMENT_BYTES, OperandRange};

const OPERATION: &str = "run a transform";

/// A transform that can be run any number of times, in any stream of its context. Its tables are
/// allocated in the context when it is made; runs allocate no device memory and wait for nothing,
/// so they can be captured.
///
/// ```no_run
/// use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
/// use fercuda_vendor::cufft::{
///     CufftLibrary, TransformDirection, TransformKind, TransformPlan, TransformPrecision,
///     TransformSpec,
/// };
///
/// let context = Context::primary(Cuda::from_env()?.device(0)?)?;
/// let stream = Stream::new(&context)?;
/// let kind = TransformKind::ComplexToComplex;
/// let spec = TransformSpec::new(kind, TransformPrecision::F32, &[256]);
/// let plan = TransformPlan::new(&CufftLibrary::find()?, &context, &spec)?;
/// let mut work = DeviceBuffer::<u8>::alloc(&context, plan.workspace_bytes() as usize)?;
/// let mut signal = DeviceBuffer::from_host(&[[1.0f32, 0.0]; 256], &stream)?;
/// let forward = TransformDirection::Forward;
/// plan.run_in_place(&stream, forward, signal.as_slice_mut(), work.as_slice_mut())?;
/// assert_eq!(signal.to_vec(&stream)?[0], [256.0, 0.0]);
/// # Ok::<(), fercuda_vendor::Error>(())
/// ```
#[derive(Debug)]
pub struct TransformPlan {
    spec: TransformSpec,
    checked: CheckedTransform,
    plan: QueuedResource<FftPlan>,
}

impl TransformPlan {
    /// Checks `spec` and makes its plan in `context`.
    ///
    /// # Errors
    /// [`Error::Refused`] with what does not go together; [`Error::SoftwareDevice`];
    /// [`Error::Call`].
    pub fn new(library: &CufftLibrary, context: &Context, spec: &TransformSpec) -> Result<Self> {
        let checked = spec.check()?;
        library.functions().library().check_device(context)?;
        context.bind()?;
        let of = (spec.kind, spec.precision);
        let plan = FftPlan::make(library.functions(), of, &checked, || format!("plan {spec}"))?;
        Ok(Self {
            spec: spec.clone(),
            checked,
            plan: QueuedResource::new(context, plan),
        })
    }

    /// Its description.
    pub fn spec(&self) -> &TransformSpec {
        &self.spec
    }

    /// Bytes of workspace that a run needs, at an address that is a multiple of 256. Runs that may
    /// be done at the same time need workspaces of their own.
    pub fn workspace_bytes(&self) -> u64 {
        self.plan.object().work_bytes()
    }

    /// Queues the transform of `input` to `output` in `stream`.
    ///
    /// # Errors
    /// [`Error::Refused`] for memory that is too short, misaligned or overlaps, a direction that
    /// the kind does not have, or a transform to real values, which overwrites its input
    /// ([`TransformPlan::run_overwriting`]); [`Error::Call`]; [`Error::Cuda`]. Nothing is queued
    /// then.
    pub fn run<I: Pod, O: Pod>(
        &self,
        stream: &Stream,
        direction: TransformDirection,
        input: DeviceSlice<'_, I>,
        output: DeviceSliceMut<'_, O>,
        workspace: DeviceSliceMut<'_, u8>,
    ) -> Result<()> {
        self.check_keeps_input()?;
        let output = output.into_bytes();
        let memory = [input.as_bytes(), output.as_slice()];
        self.run_apart(stream, direction, memory, Some(workspace.as_slice()))
    }

    /// As [`TransformPlan::run`], of bytes, the output and the workspace through shared references:
    /// device memory is not visible to Rust's aliasing rules, and a run compares the ranges. For
    /// callers that keep such references for several kernels. A plan that needs no workspace can do
    /// without one.
    ///
    /// # Errors
    /// As [`TransformPlan::run`].
    pub fn run_bytes(
        &self,
        stream: &Stream,
        direction: TransformDirection,
        [input, output]: [DeviceSlice<'_, u8>; 2],
        workspace: Option<DeviceSlice<'_, u8>>,
    ) -> Result<()> {
        self.check_keeps_input()?;
        self.run_apart(stream, direction, [input, output], workspace)
    }

    /// Refuses a transform that overwrites its input.
    fn check_keeps_input(&self) -> Result<()> {
        match self.spec.kind {
            TransformKind::ComplexToReal => Err(Error::refused(
                OPERATION,
                "a transform to real values overwrites its input\ntry: run_overwriting",
            )),
            _ => Ok(()),
        }
    }

    /// As [`TransformPlan::run`]; the input's content is unspecified afterwards.
    ///
    /// # Errors
    /// As [`TransformPlan::run`].
    pub fn run_overwriting<I: Pod, O: Pod>(
        &self,
        stream: &Stream,
        direction: TransformDirection,
        input: DeviceSliceMut<'_, I>,
        output: DeviceSliceMut<'_, O>,
        workspace: DeviceSliceMut<'_, u8>,
    ) -> Result<()> {
        let (input, output) = (input.into_bytes(), output.into_bytes());
        let memory = [input.as_slice(), output.as_slice()];
        self.run_apart(stream, direction, memory, Some(workspace.as_slice()))
    }

    /// Queues the transform of `data` in place, which a transform of real values can do if it is
    /// [`padded`](TransformSpec::padded).
    ///
    /// # Errors
    /// As [`TransformPlan::run`], and [`Error::Refused`] if input and output lie differently.
    pub fn run_in_place<T: Pod>(
        &self,
        stream: &Stream,
        direction: TransformDirection,
        data: DeviceSliceMut<'_, T>,
        workspace: DeviceSliceMut<'_, u8>,
    ) -> Result<()> {
        if !self.checked.is_in_place_layout {
            let reason = format!(
                "input and output of {} lie differently, so it is not done in place\n\
                 try: TransformSpec::padded",
                self.spec
            );
            return Err(Error::refused(OPERATION, reason));
        }
        let (input, output) = (&self.checked.input, &self.checked.output);
        let bytes = input.reach_bytes.max(output.reach_bytes);
        let data = data.into_bytes();
        let range = OperandRange::of_mut("the data", &data).prefix(OPERATION, bytes)?;
        range.check_alignment(OPERATION, self.checked.complex_bytes)?;
        let work = self.check_workspace(&workspace.as_slice(), &[range])?;
        let memory = [data.as_slice(), workspace.as_slice()].map(KernelArg::slice);
        let signals = CheckedSignals {
            input: range.address,
            output: range.address,
            work,
        };
        self.queue(stream, direction, signals, &memory)
    }

    fn run_apart(
        &self,
        stream: &Stream,
        direction: TransformDirection,
        [input, output]: [DeviceSlice<'_, u8>; 2],
        workspace: Option<DeviceSlice<'_, u8>>,
    ) -> Result<()> {
        let checked = &self.checked;
        let from = OperandRange::of("the input", &input);
        let from = from.prefix(OPERATION, checked.input.reach_bytes)?;
        let to = OperandRange::of("the output", &output);
        let to = to.prefix(OPERATION, checked.output.reach_bytes)?;
        for range in [from, to] {
            range.check_alignment(OPERATION, checked.complex_bytes)?;
        }
        to.check_apart(OPERATION, from)?;
        let work = match &workspace {
            None if self.workspace_bytes() == 0 => 0,
            None => {
                let reason = format!("it needs {} bytes of workspace", self.workspace_bytes());
                return Err(Error::refused(OPERATION, reason));
            }
            Some(workspace) => self.check_workspace(workspace, &[from, to])?,
        };
        let memory = [Some(input), Some(output), workspace].into_iter().flatten();
        let memory: Vec<KernelArg<'_>> = memory.map(KernelArg::slice).collect();
        let signals = CheckedSignals {
            input: from.address,
            output: to.address,
            work,
        };
        self.queue(stream, direction, signals, &memory)
    }

    /// The address of a workspace that is large enough, aligned and apart from `others`.
    fn check_workspace(
        &self,
        workspace: &DeviceSlice<'_, u8>,
        others: &[OperandRange],
    ) -> Result<u64> {
        let range = OperandRange::of("the workspace", workspace);
        let needed = self.workspace_bytes();
        if range.bytes < needed {
            let reason = format!(
                "it needs {needed} bytes of workspace, and that has {}",
                range.bytes
            );
            return Err(Error::refused(OPERATION, reason));
        }
        range.check_alignment(OPERATION, FULL_ALIGNMENT_BYTES)?;
        for other in others {
            range.check_apart(OPERATION, *other)?;
        }
        Ok(range.address)
    }

    fn queue(
        &self,
        stream: &Stream,
        direction: TransformDirection,
        signals: CheckedSignals,
        memory: &[KernelArg<'_>],
    ) -> Result<()> {
        let only = match self.spec.kind {
            TransformKind::ComplexToComplex => direction,
            TransformKind::RealToComplex => TransformDirection::Forward,
            TransformKind::ComplexToReal => TransformDirection::Inverse,
        };
        if direction != only {
            let reason = format!("{:?} is {only:?} only", self.spec.kind);
            return Err(Error::refused(OPERATION, reason));
        }
        stream.queue_with(&self.plan, &memory, |raw| {
            self.plan.object().execute(raw, direction, signals)
        })?
    }
}

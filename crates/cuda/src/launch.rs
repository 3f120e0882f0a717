//! Launching kernels.
//!
//! A launch is a value made once and used many times: shape, shared memory and attributes.
//! Launching checks the arguments against the kernel's declaration, notes which memory is in use,
//! and makes one driver call, with arguments and attributes on the stack. A launch without
//! attributes is `cuLaunchKernel`, which every driver has.
//!
//! There is a fast path and a slow path. [`Launch::try_fast_path`] is for a launch that needs no
//! new bookkeeping: no attributes, every buffer noted in the stream before. All others take
//! [`Launch::run_raw`], which reports what is wrong and notes what is new.
//!
//! Invariant: the resources of a launch are noted before the driver is called; and the fast path
//! launches nothing that the slow path would refuse or note.

use std::ffi::c_void;
use std::sync::Arc;

use fercuda_cuda_sys::types::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchAttributeValue_clusterDim, CUlaunchConfig, CUresult,
};

use crate::argument::Arguments;
use crate::callback;
use crate::error::{ArgumentError, CallResult, Error, Result, check};
use crate::module::Function;
use crate::stream::Stream;

/// Three extents; those not given are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dim {
    /// Along x.
    pub x: u32,
    /// Along y.
    pub y: u32,
    /// Along z.
    pub z: u32,
}

impl Dim {
    /// The product of the three.
    pub fn count(self) -> u64 {
        // Three factors below 2^32 may not fit 64 bits; no launch is that big.
        u64::from(self.x)
            .saturating_mul(u64::from(self.y))
            .saturating_mul(u64::from(self.z))
    }
}

impl From<u32> for Dim {
    fn from(x: u32) -> Self {
        Self { x, y: 1, z: 1 }
    }
}

impl From<(u32, u32)> for Dim {
    fn from((x, y): (u32, u32)) -> Self {
        Self { x, y, z: 1 }
    }
}

impl From<(u32, u32, u32)> for Dim {
    fn from((x, y, z): (u32, u32, u32)) -> Self {
        Self { x, y, z }
    }
}

/// The shape of a launch and its other parameters.
///
/// ```no_run
/// # use fercuda_cuda::{Context, Cuda, DeviceBuffer, Image, Launch, Module, Stream};
/// # let context = Context::primary(Cuda::from_env()?.device(0)?)?;
/// # let (stream, ptx) = (Stream::new(&context)?, "");
/// let scale = Module::load(&context, &Image::ptx(ptx))?.function("scale")?;
/// let mut values = DeviceBuffer::from_host(&[1.0f32; 1000], &stream)?;
/// let launch = Launch::new(4, 256).shared_bytes(64 << 10);
/// // SAFETY: `scale` writes `values` only, and at indices below 1000.
/// unsafe { launch.run(&scale, &stream, (&mut values, 2.0f32, 1000u32))? };
/// # Ok::<(), fercuda_cuda::Error>(())
/// ```
///
/// A type without a size and layout that a kernel could know is no argument:
///
/// ```compile_fail,E0277
/// # let (launch, function, stream): (fercuda_cuda::Launch, fercuda_cuda::Function,
/// fercuda_cuda::Stream) = unreachable!();
/// unsafe { launch.run(&function, &stream, (vec![1.0f32],)) };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    grid: Dim,
    block: Dim,
    shared_bytes: u32,
    cluster: Option<Dim>,
    cooperative: bool,
    overlaps_previous: bool,
    /// The threads of a block, or `u64::MAX` for a launch with attributes, which is more than any
    /// kernel may have: one comparison checks both.
    plain_threads: u64,
}

impl Launch {
    /// `grid` blocks of `block` threads.
    pub fn new(grid: impl Into<Dim>, block: impl Into<Dim>) -> Self {
        let block = block.into();
        Self {
            grid: grid.into(),
            block,
            shared_bytes: 0,
            cluster: None,
            cooperative: false,
            overlaps_previous: false,
            plain_threads: block.count(),
        }
    }

    /// As many blocks of `block` threads as `threads` need.
    pub fn for_threads(threads: u32, block: u32) -> Self {
        Self::new(threads.div_ceil(block.max(1)).max(1), block)
    }

    /// Dynamic shared memory of each block. Above the 48 KiB that every kernel may use, the launch
    /// raises the kernel's limit first.
    pub fn shared_bytes(self, bytes: u32) -> Self {
        Self {
            shared_bytes: bytes,
            ..self
        }
    }

    /// Groups blocks into clusters of this shape.
    pub fn cluster(self, cluster: impl Into<Dim>) -> Self {
        Self {
            cluster: Some(cluster.into()),
            plain_threads: u64::MAX,
            ..self
        }
    }

    /// All blocks run at once, so that they may wait for each other.
    pub fn cooperative(self) -> Self {
        Self {
            cooperative: true,
            plain_threads: u64::MAX,
            ..self
        }
    }

    /// The kernel may start before the previous one in the stream has finished, and synchronises
    /// with it itself (programmatic dependent launch).
    pub fn overlaps_previous(self) -> Self {
        Self {
            overlaps_previous: true,
            plain_threads: u64::MAX,
            ..self
        }
    }

    /// Queues `function` with `arguments` in `stream`.
    ///
    /// Buffers passed are not freed before the kernel is done with them.
    ///
    /// # Errors
    /// [`Error::Arguments`] if number or sizes of the arguments are not the kernel's;
    /// [`Error::LaunchLimit`]; [`Error::OtherContext`]; [`Error::Driver`]. Nothing is launched
    /// then. A fault of the kernel is an error of a later call.
    ///
    /// # Safety
    /// A kernel can read and write any address it computes, and was not compiled by this crate. The
    /// caller vouches that, with these arguments and this shape, it accesses only memory that it
    /// was passed (or that stays alive until it is done, like its module's variables), within
    /// bounds; that the arguments are what the parameters mean; and that other work on the same
    /// memory, the host's on pinned memory included, is ordered by streams and events.
    #[inline]
    pub unsafe fn run<A: Arguments>(
        &self,
        function: &Function,
        stream: &Stream,
        arguments: A,
    ) -> Result<()> {
        // SAFETY: the caller's contract.
        match unsafe { self.try_fast_path(function, stream, &arguments) } {
            LaunchFastPath::Done => Ok(()),
            // SAFETY: the caller's contract, and `other` is the outcome of the fast path.
            other => unsafe { self.finish(function, stream, &arguments, other) },
        }
    }

    /// Launches if there is nothing to refuse and nothing to note.
    ///
    /// A function of its own, so that a caller's loop contains a call and a test: this outcome fits
    /// two registers, where a [`Result`] is eleven words in memory, and rare cases are elsewhere.
    ///
    /// # Safety
    /// As for [`Launch::run`].
    #[inline(never)]
    unsafe fn try_fast_path<A: Arguments>(
        &self,
        function: &Function,
        stream: &Stream,
        arguments: &A,
    ) -> LaunchFastPath {
        let Some(packed) = A::PACKED else {
            return LaunchFastPath::NotTaken;
        };
        let inner = &*function.inner;
        arguments.with(|pointers, _| {
            // A stream that the module has noted is of the module's context: `run_raw` has compared
            // them, and neither ever changes.
            let is_fast = packed == inner.packed_parameters
                && self.plain_threads <= u64::from(inner.max_threads)
                && function.may_use_shared(self.shared_bytes)
                && !callback::is_in_callback()
                && (all_first(function, stream, arguments)
                    || all_recent(function, stream, arguments));
            if !is_fast {
                return LaunchFastPath::NotTaken;
            }
            let Some(epoch) = stream.uncaptured_epoch() else {
                return LaunchFastPath::NotTaken;
            };
            // SAFETY: the caller's contract; sizes and context were compared.
            let answer = unsafe { self.call_plain(function, stream, pointers) };
            if !succeeded(&answer) {
                LaunchFastPath::Refused(epoch)
            } else if stream.epoch() != epoch {
                LaunchFastPath::RacedByCapture
            } else {
                LaunchFastPath::Done
            }
        })
    }

    /// Completes a launch after the fast path.
    ///
    /// # Safety
    /// As for [`Launch::run`]; `fast_path` is the outcome of the same launch.
    #[cold]
    unsafe fn finish<A: Arguments>(
        &self,
        function: &Function,
        stream: &Stream,
        arguments: &A,
        fast_path: LaunchFastPath,
    ) -> Result<()> {
        arguments.with(|pointers, sizes| match fast_path {
            // SAFETY: the caller's contract; nothing was launched.
            LaunchFastPath::NotTaken => unsafe {
                self.run_raw(function, stream, pointers, sizes, arguments)
            },
            // SAFETY: as above, and sizes and context were compared.
            LaunchFastPath::Refused(epoch) => unsafe {
                self.repeat(function, stream, pointers, arguments, epoch)
            },
            LaunchFastPath::RacedByCapture => {
                leak_resources(function, arguments);
                Ok(())
            }
            LaunchFastPath::Done => Ok(()),
        })
    }

    /// # Safety
    /// As for [`Launch::run`]; `pointers` point to values of `sizes` bytes, which refer to
    /// `memory`.
    unsafe fn run_raw(
        &self,
        function: &Function,
        stream: &Stream,
        pointers: &mut [*mut c_void],
        sizes: &[usize],
        memory: &impl Arguments,
    ) -> Result<()> {
        let inner = &*function.inner;
        if let Some(expected) = &inner.parameters
            && **expected != *sizes
        {
            return Err(wrong_arguments(function, expected, sizes));
        }
        if self.block.count() > u64::from(inner.max_threads) {
            return Err(too_many_threads(function, self.block.count()));
        }
        if stream.context() != function.context() {
            return Err(Error::OtherContext {
                operation: "launch a kernel",
                left: function.context().device().to_string(),
                right: stream.context().device().to_string(),
            });
        }
        if callback::is_in_callback() {
            return Err(Error::InCallback);
        }
        function.allow_shared(self.shared_bytes)?;
        let uses = inner.module.uses();
        if !uses.has_recent(stream) {
            uses.note(stream);
        }
        memory.note(stream)?;
        let Some(epoch) = stream.uncaptured_epoch() else {
            let entered = stream.enter()?;
            if let Some(state) = entered.capture() {
                state.keep(Arc::as_ptr(&inner.module) as usize, inner.module.clone());
                memory.for_each(|allocation| allocation.keep_in(&entered));
            }
            // A default stream uses the thread's current context, and a refusal might end a
            // capture.
            stream.context().bind()?;
            // SAFETY: the caller's contract.
            let answer = unsafe { self.call(function, stream, pointers) };
            return self.outcome(function, answer);
        };
        // SAFETY: the caller's contract.
        let answer = unsafe { self.call(function, stream, pointers) };
        if !succeeded(&answer) {
            // SAFETY: the caller's contract; nothing was launched.
            return unsafe { self.repeat(function, stream, pointers, memory, epoch) };
        }
        if stream.epoch() != epoch {
            leak_resources(function, memory);
        }
        Ok(())
    }

    /// Repeats a launch that the driver has refused in a stream that was not captured at `epoch`.
    /// Function and stream determine the context, so the thread's current one is checked only now.
    ///
    /// # Safety
    /// As for `run_raw`; sizes and context were compared.
    unsafe fn repeat(
        &self,
        function: &Function,
        stream: &Stream,
        pointers: &mut [*mut c_void],
        memory: &impl Arguments,
        epoch: u64,
    ) -> Result<()> {
        stream.context().bind()?;
        // SAFETY: the caller's contract.
        let answer = unsafe { self.call(function, stream, pointers) };
        if stream.epoch() != epoch {
            leak_resources(function, memory);
        }
        self.outcome(function, answer)
    }

    /// Makes one driver call.
    ///
    /// # Safety
    /// As for `repeat`.
    unsafe fn call(
        &self,
        function: &Function,
        stream: &Stream,
        pointers: &mut [*mut c_void],
    ) -> CallResult {
        // SAFETY: the caller's contract.
        unsafe {
            if self.is_plain() {
                self.call_plain(function, stream, pointers)
            } else {
                self.call_with_attributes(function, stream, pointers)
            }
        }
    }

    /// # Safety
    /// As for `call`.
    #[inline]
    unsafe fn call_plain(
        &self,
        function: &Function,
        stream: &Stream,
        pointers: &mut [*mut c_void],
    ) -> CallResult {
        if stream.context().is_reset() {
            return Ok(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        // SAFETY: function and stream are alive and of one context; the values
        // behind `pointers` outlive the call, which only reads them; their number
        // and sizes are the kernel's as far as the driver can tell, and for
        // the rest the caller vouches.
        unsafe {
            stream.context().driver().cuLaunchKernel(
                function.inner.raw,
                self.grid.x,
                self.grid.y,
                self.grid.z,
                self.block.x,
                self.block.y,
                self.block.z,
                self.shared_bytes,
                stream.raw(),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }

    /// Turns the status into a result.
    fn outcome(&self, function: &Function, answer: CallResult) -> Result<()> {
        let call = match self.is_plain() {
            true => "cuLaunchKernel",
            false => "cuLaunchKernelEx",
        };
        check(answer, call, || {
            format!(
                "launch `{}` with grid {:?}, block {:?}, {} bytes of dynamic shared memory",
                function.name(),
                (self.grid.x, self.grid.y, self.grid.z),
                (self.block.x, self.block.y, self.block.z),
                self.shared_bytes
            )
        })
    }

    /// # Safety
    /// As for `call`.
    unsafe fn call_with_attributes(
        &self,
        function: &Function,
        stream: &Stream,
        pointers: &mut [*mut c_void],
    ) -> CallResult {
        if stream.context().is_reset() {
            return Ok(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
        }
        let (mut attributes, count) = self.attributes();
        let config = CUlaunchConfig {
            gridDimX: self.grid.x,
            gridDimY: self.grid.y,
            gridDimZ: self.grid.z,
            blockDimX: self.block.x,
            blockDimY: self.block.y,
            blockDimZ: self.block.z,
            sharedMemBytes: self.shared_bytes,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        // SAFETY: configuration and attributes outlive the call; the rest is as
        // in `call_plain`.
        unsafe {
            stream.context().driver().cuLaunchKernelEx(
                &config,
                function.inner.raw,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }

    /// Whether it has no attributes.
    fn is_plain(&self) -> bool {
        self.cluster.is_none() && !self.cooperative && !self.overlaps_previous
    }

    /// Its attributes, and how many there are.
    fn attributes(&self) -> ([CUlaunchAttribute; 3], u32) {
        let mut attributes = [const { NO_ATTRIBUTE }; 3];
        let mut count = 0;
        let mut add = |id, value| {
            attributes[count].id = id;
            attributes[count].value = value;
            count += 1;
        };
        if let Some(Dim { x, y, z }) = self.cluster {
            add(
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                CUlaunchAttributeValue {
                    clusterDim: CUlaunchAttributeValue_clusterDim { x, y, z },
                },
            );
        }
        if self.cooperative {
            add(
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                CUlaunchAttributeValue { cooperative: 1 },
            );
        }
        if self.overlaps_previous {
            add(
                CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                CUlaunchAttributeValue {
                    programmaticStreamSerializationAllowed: 1,
                },
            );
        }
        (attributes, count as u32)
    }
}

const NO_ATTRIBUTE: CUlaunchAttribute = CUlaunchAttribute {
    id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
    pad: [0; 4],
    value: CUlaunchAttributeValue { pad: [0; 64] },
};

/// Outcome of the fast path.
enum LaunchFastPath {
    /// Launched.
    Done,
    /// A check failed; nothing was launched.
    NotTaken,
    /// The driver refused, so nothing was launched. The stream was not captured at this epoch.
    Refused(u64),
    /// Launched, and a capture of the stream has begun meanwhile.
    RacedByCapture,
}

#[inline]
fn succeeded(answer: &CallResult) -> bool {
    matches!(answer, Ok(CUresult::CUDA_SUCCESS))
}

/// Leaks the resources of a launch during which another thread began to capture the stream: whether
/// the launch is in its graph, or has yet to run after the work that thread has waited for, is
/// unknown.
#[cold]
fn leak_resources(function: &Function, memory: &impl Arguments) {
    std::mem::forget(function.inner.module.clone());
    memory.for_each(|allocation| std::mem::forget(allocation.clone()));
}

/// Whether `stream` is the first of the streams noted last for every resource of a launch, as it is
/// in a program with one stream: one comparison each.
#[inline]
fn all_first(function: &Function, stream: &Stream, memory: &impl Arguments) -> bool {
    function.inner.module.uses().is_first(stream)
        && memory.all(|allocation| allocation.uses().is_first(stream))
}

/// Whether `stream` is among those noted last for every resource of a launch.
#[cold]
fn all_recent(function: &Function, stream: &Stream, memory: &impl Arguments) -> bool {
    function.inner.module.uses().has_recent(stream)
        && memory.all(|allocation| allocation.uses().has_recent(stream))
}

#[cold]
fn wrong_arguments(function: &Function, expected: &[usize], given: &[usize]) -> Error {
    Error::Arguments(Box::new(ArgumentError {
        kernel: function.name().to_owned(),
        expected: expected.to_vec(),
        given: given.to_vec(),
    }))
}

#[cold]
fn too_many_threads(function: &Function, asked: u64) -> Error {
    Error::LaunchLimit {
        kernel: function.name().to_owned(),
        what: "the number of threads in a block",
        asked,
        limit: function.max_threads_per_block().into(),
        advice: "smaller blocks and more of them",
    }
}

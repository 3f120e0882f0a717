//! Numbers and structures of the interface.
//!
//! Invariant: a structure that C fills has only integers, floats, addresses and unions of them, so
//! that every bit pattern is valid; their values are validated.

use core::ffi::{CStr, c_char};

use fercuda_runtime::{Dtype, Layout, Regime};

use crate::status::{CallFailure, Result};

/// Maximum number of dimensions of a layout.
pub const FER_MAX_RANK: usize = 8;
/// Size of a holder's name, including the zero byte.
pub const FER_NAME_BYTES: usize = 64;
/// Number of words of a task.
pub const FER_TASK_WORDS: usize = 4;
/// Maximum number of spans of a task.
pub const FER_TASK_SPANS: usize = 3;
/// Number of words of a graph's key, besides its generation.
pub const FER_KEY_WORDS: usize = 7;
/// As a timeout: no limit.
pub const FER_WAIT_FOREVER: u64 = u64::MAX;

/// A device with its pool.
pub type fer_runtime = u64;
/// Owner of buffers, with an order of work.
pub type fer_session = u64;
/// Memory with a layout, of one session.
pub type fer_buffer = u64;
/// Asynchronous work.
pub type fer_job = u64;
/// Loaded code.
pub type fer_module = u64;
/// A kernel of a module.
pub type fer_kernel = u64;
/// Tensors planned into one buffer.
pub type fer_arena = u64;
/// A resident kernel that takes tasks.
pub type fer_dispatcher = u64;
/// A submitted task.
pub type fer_ticket = u64;
/// Registration of a runtime that accepts control requests.
pub type fer_requests = u64;
/// Graph cache of a session.
pub type fer_graphs = u64;
/// A graph while it is captured.
pub type fer_capture = u64;
/// Argument block: device memory for values that change from replay to replay.
pub type fer_arguments = u64;

/// Descriptor of an op: its name and parameters.
pub type fer_op = u64;
/// An op for operands of fixed layouts, with its kernel chosen and compiled.
pub type fer_op_plan = u64;

/// Choice of a device.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_device {
    /// The choice of the variable FERCUDA_DEVICE (soft, gpu or auto).
    FER_DEVICE_FROM_ENVIRONMENT = 0,
    /// A GPU if there is one, else the software device.
    FER_DEVICE_AUTO = 1,
    /// A GPU, or an error.
    FER_DEVICE_GPU = 2,
    /// The software device, which executes kernels on the CPU.
    FER_DEVICE_SOFTWARE = 3,
}

/// Type of an element.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_dtype {
    /// IEEE 754 binary64.
    FER_DTYPE_F64 = 1,
    /// IEEE 754 binary32.
    FER_DTYPE_F32 = 2,
    /// IEEE 754 binary16.
    FER_DTYPE_F16 = 3,
    /// The upper half of a binary32.
    FER_DTYPE_BF16 = 4,
    /// 8 bits: 4 of exponent, 3 of fraction.
    FER_DTYPE_F8E4M3 = 5,
    /// 8 bits: 5 of exponent, 2 of fraction.
    FER_DTYPE_F8E5M2 = 6,
    /// Signed, 8 bits.
    FER_DTYPE_I8 = 7,
    /// Signed, 16 bits.
    FER_DTYPE_I16 = 8,
    /// Signed, 32 bits.
    FER_DTYPE_I32 = 9,
    /// Signed, 64 bits.
    FER_DTYPE_I64 = 10,
    /// Unsigned, 8 bits.
    FER_DTYPE_U8 = 11,
    /// Unsigned, 16 bits.
    FER_DTYPE_U16 = 12,
    /// Unsigned, 32 bits.
    FER_DTYPE_U32 = 13,
    /// Unsigned, 64 bits.
    FER_DTYPE_U64 = 14,
    /// A byte that is 0 or 1.
    FER_DTYPE_BOOL = 15,
}

/// Kind of a buffer's memory.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_regime {
    /// A block of the process's pool.
    FER_REGIME_POOL = 1,
    /// Physical memory that the driver allocated and mapped for this buffer.
    FER_REGIME_DRIVER = 2,
    /// One address for the host and all devices.
    FER_REGIME_MANAGED = 3,
    /// Page-locked host memory.
    FER_REGIME_PINNED = 4,
    /// Imported memory of another owner (fer_import_device_ptr). Cannot be allocated.
    FER_REGIME_FOREIGN = 5,
    /// Memory from the session's allocator (fer_session_open_with_allocator).
    FER_REGIME_CALLBACKS = 6,
}

/// State of a job.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_job_state {
    /// Waiting on the host; can be cancelled.
    FER_JOB_WAITING = 1,
    /// Submitted to the device.
    FER_JOB_RUNNING = 2,
    /// Complete, successfully.
    FER_JOB_DONE = 3,
    /// Failed; fer_job_wait returns the error.
    FER_JOB_FAILED = 4,
    /// Cancelled.
    FER_JOB_CANCELLED = 5,
}

/// Kind of an argument.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_argument_kind {
    /// The address of a buffer's first element: value.buffer.
    FER_ARGUMENT_BUFFER = 1,
    /// A number of 1, 2, 4 or 8 bytes: the member of value that has its type.
    FER_ARGUMENT_NUMBER = 2,
    /// A structure: value.structure points to its bytes, which are copied.
    FER_ARGUMENT_STRUCTURE = 3,
}

/// Operation of a task. Its spans are whole elements of 4 bytes; words that are not named are not
/// read. A task that fails writes nothing, unless it was cancelled or has exhausted its steps: then
/// it has written a part.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_task_number {
    /// to[i] = pattern: spans[0] is `to`, the low half of words[0] the pattern, a uint32_t. Returns
    /// the number of elements written.
    FER_TASK_FILL = 1,
    /// to[i] = from[i]: spans[0] is `to`, spans[1] `from`, of equal length. They are disjoint or
    /// identical. Returns the number of elements written.
    FER_TASK_COPY = 2,
    /// y[i] = a * x[i] + y[i], rounded once: spans[0] is `y`, spans[1] `x`, floats, of equal
    /// length; the low half of words[0] has the bits of `a`. They are disjoint or identical.
    /// Returns the number of elements written.
    FER_TASK_AXPY_F32 = 3,
    /// sum[0] = values[0] + values[1] + ..., modulo 2^32: spans[0] is `sum`, one uint32_t, spans[1]
    /// `values`, which may contain `sum`. Returns the sum.
    FER_TASK_SUM_U32 = 4,
    /// The same for floats. The threads of the block add the values in a stride of the block's
    /// size, then reduce their partial sums in pairs: the sum depends on the values and the block's
    /// size alone. Returns the sum's bits.
    FER_TASK_SUM_F32 = 5,
}

/// Layout of elements, relative to the first one. fer_layout_contiguous fills one in.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct fer_layout {
    /// Type of an element: a fer_dtype.
    pub dtype: u32,
    /// Number of dimensions, 0 (one element) to FER_MAX_RANK.
    pub rank: u32,
    /// Number of elements along each dimension.
    pub shape: [u64; FER_MAX_RANK],
    /// Stride of each dimension, in elements; may be negative or 0.
    pub strides: [i64; FER_MAX_RANK],
}

/// Properties of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_buffer_details {
    /// Layout of its elements.
    pub layout: fer_layout,
    /// Size of its elements for uploads and downloads, in bytes.
    pub bytes: u64,
    /// Kind of its memory: a fer_regime.
    pub regime: u32,
    /// 1 if its address was exported, else 0.
    pub is_exported: u32,
}

/// Properties of a plan of an op.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_op_plan_details {
    /// Name of the chosen kernel, zero-terminated.
    pub kernel: [core::ffi::c_char; FER_NAME_BYTES],
    /// Size of the workspace that a run needs, in bytes; 0 if it needs none.
    pub workspace_bytes: u64,
    /// Number of operands.
    pub operands: u64,
    /// Number of outputs.
    pub outputs: u64,
    /// Number of kernels that a run launches.
    pub launches: u64,
    /// Number of runs for which NVIDIA's library refused the kernel that it had offered, and
    /// another one computed the result.
    pub refused_runs: u64,
}

/// Properties of a session.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_session_details {
    /// Device memory that it holds, in bytes; blocks are multiples of 512.
    pub held_bytes: u64,
    /// Peak of the held bytes.
    pub peak_bytes: u64,
    /// Limit of the held bytes; 0 for no limit.
    pub limit_bytes: u64,
    /// Number of buffers.
    pub buffers: u64,
}

/// The driver's figures of a device's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_memory_details {
    /// Free bytes.
    pub free_bytes: u64,
    /// Total bytes.
    pub total_bytes: u64,
}

/// A tenant of this process that holds memory of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_holder {
    /// The tenant's name, truncated to fit, zero-terminated: a session's, or a library's.
    pub name: [core::ffi::c_char; FER_NAME_BYTES],
    /// Live blocks of the pool, in bytes.
    pub pooled_bytes: u64,
    /// Memory that the driver allocated itself, also of the host, in bytes.
    pub governed_bytes: u64,
}

/// Result of a reboot.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_reboot_details {
    /// Epoch of the device's memory: the number of reboots.
    pub epoch: u64,
    /// Sessions that were ended.
    pub sessions: u64,
    /// Bytes that were returned to the driver.
    pub returned_bytes: u64,
    /// 1 if the context had failed and was reset, else 0.
    pub was_reset: u32,
    /// Number of other tenants that still hold memory of the device.
    pub others: u32,
}

/// Shape of a launch. 0 in `grid` or `block` is refused.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_launch {
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of each block, in bytes.
    pub shared_bytes: u32,
    /// 1 if blocks wait for each other (cooperative), else 0.
    pub is_cooperative: u32,
}

/// An argument's value.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fer_argument_value {
    /// A buffer of the session.
    pub buffer: fer_buffer,
    /// A float.
    pub f32: f32,
    /// A double.
    pub f64: f64,
    /// A signed number of 4 bytes.
    pub i32: i32,
    /// A signed number of 8 bytes.
    pub i64: i64,
    /// An unsigned number of 4 bytes.
    pub u32: u32,
    /// An unsigned number of 8 bytes.
    pub u64: u64,
    /// Any number's bytes.
    pub bytes: [u8; 8],
    /// A structure.
    pub structure: *const core::ffi::c_void,
}

/// Argument of a kernel. It is compared with the kernel's declaration, if the driver reports that
/// (CUDA 12.4 and later).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fer_argument {
    /// A fer_argument_kind.
    pub kind: u32,
    /// Size of a number (1, 2, 4, 8) or a structure (1 to 32764); 8 or 0 for a buffer.
    pub bytes: u32,
    /// The value.
    pub value: fer_argument_value,
}

/// A buffer of an expression, and its name in the text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_named_buffer {
    /// The name, zero-terminated.
    pub name: *const core::ffi::c_char,
    /// The buffer; for an output 0 for a new one; its handle replaces the 0.
    pub buffer: fer_buffer,
}

/// A tensor, and the steps of a program at which it is live.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_tensor_spec {
    /// Its name, unique in the plan.
    pub name: *const core::ffi::c_char,
    /// Type of an element: a fer_dtype.
    pub dtype: u32,
    /// Number of dimensions.
    pub rank: u32,
    /// Number of elements along each dimension; the tensor is contiguous.
    pub shape: [u64; FER_MAX_RANK],
    /// The first step that needs it.
    pub from_step: u32,
    /// The first later step that does not need it.
    pub until_step: u32,
}

/// Properties of an arena.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_arena_details {
    /// The whole arena, as a buffer of bytes.
    pub buffer: fer_buffer,
    /// Size of the arena.
    pub bytes: u64,
    /// Number of tensors.
    pub tensors: u64,
}

/// Options of a dispatcher. fer_dispatcher_defaults fills them in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_dispatcher_options {
    /// Slots of each priority's ring, a power of two.
    pub capacity: u32,
    /// Number of priorities, 1 to 8.
    pub priorities: u32,
    /// Blocks that take tasks; each occupies the device.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32, at most 1024.
    pub threads: u32,
    /// How long an idle block sleeps between polls.
    pub idle_ns: u32,
    /// Maximum number of steps of each thread of a task, unless the task sets it; a step per
    /// element.
    pub steps: u32,
    /// A task that runs longer is cancelled by the thread that waits for it; if it does not end
    /// within as long again, the dispatcher is lost.
    pub watchdog_ns: u64,
}

/// A range of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_task_span {
    /// A buffer that the dispatcher was booted with.
    pub buffer: fer_buffer,
    /// Offset from the buffer's first element.
    pub offset_bytes: u64,
    /// Length.
    pub bytes: u64,
}

/// A task for a dispatcher.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_task {
    /// A fer_task_number.
    pub task: u32,
    /// 0 is the highest. A task of a lower one is begun only when there are none of a higher.
    pub priority: u32,
    /// Maximum number of steps of each thread; 0 for the dispatcher's.
    pub steps: u32,
    /// Number of spans in use.
    pub span_count: u32,
    /// Numbers; their meaning depends on the task.
    pub words: [u64; FER_TASK_WORDS],
    /// Memory that it accesses.
    pub spans: [fer_task_span; FER_TASK_SPANS],
}

/// Result of a task.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_task_result {
    /// Return value; see fer_task_number.
    pub value: u64,
    /// Steps of its first thread.
    pub steps: u64,
}

/// Counters of a dispatcher.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_dispatcher_details {
    /// Tasks submitted.
    pub submitted: u64,
    /// Tasks waiting or running.
    pub depth: u64,
    /// Tasks completed, with or without success.
    pub done: u64,
    /// Tasks dropped: the dispatcher ended before they did.
    pub lost: u64,
    /// Number of buffers that it was booted with.
    pub buffers: u64,
    /// Slots of each priority's ring.
    pub capacity: u32,
    /// Number of priorities.
    pub priorities: u32,
    /// 1 if it refuses new tasks, else 0.
    pub is_stopped: u32,
    /// 1 if a task runs for ever, else 0.
    pub is_lost: u32,
}

/// Key of a graph.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_graph_key {
    /// Generation of the model that owns the graph's memory: it changes each time that memory
    /// moves.
    pub generation: u64,
    /// Other properties that distinguish graphs, defined by the program.
    pub words: [u64; FER_KEY_WORDS],
}

/// Result of a capture.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_graph_record {
    /// Number of graph nodes.
    pub nodes: u64,
    /// Size that the graph counts as in the budget.
    pub bytes: u64,
    /// 1 if an existing graph was updated, 0 if a new one was instantiated.
    pub is_updated: u64,
    /// Host time of the capture.
    pub capture_ns: u64,
    /// Host time of the update or instantiation.
    pub instantiate_ns: u64,
    /// Host time of the upload to the device.
    pub upload_ns: u64,
}

/// Durations of a replay.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_graph_times {
    /// Host time to upload the graph to the device; once, when it was captured.
    pub upload_ns: u64,
    /// Host time of the launch.
    pub launch_ns: u64,
    /// Device time, from the start of the launch in its stream to its end.
    pub device_ns: u64,
    /// Host time from before the launch until completion was observed.
    pub completion_ns: u64,
}

/// Counters of a graph cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_graphs_details {
    /// Cached graphs.
    pub entries: u64,
    /// Sum of their sizes in the budget.
    pub bytes: u64,
    /// Dropped graphs with last replays that are running, or not yet polled.
    pub retired: u64,
    /// Replays.
    pub replays: u64,
    /// Replays that found no graph.
    pub absent: u64,
    /// Graphs instantiated.
    pub instantiated: u64,
    /// Graphs updated in place.
    pub updated: u64,
    /// Graphs evicted.
    pub evicted: u64,
}

/// Types, by their numbers in C.
const DTYPES: [(fer_dtype, Dtype); 15] = {
    use fer_dtype::*;
    [
        (FER_DTYPE_F64, Dtype::F64),
        (FER_DTYPE_F32, Dtype::F32),
        (FER_DTYPE_F16, Dtype::F16),
        (FER_DTYPE_BF16, Dtype::Bf16),
        (FER_DTYPE_F8E4M3, Dtype::F8E4m3),
        (FER_DTYPE_F8E5M2, Dtype::F8E5m2),
        (FER_DTYPE_I8, Dtype::I8),
        (FER_DTYPE_I16, Dtype::I16),
        (FER_DTYPE_I32, Dtype::I32),
        (FER_DTYPE_I64, Dtype::I64),
        (FER_DTYPE_U8, Dtype::U8),
        (FER_DTYPE_U16, Dtype::U16),
        (FER_DTYPE_U32, Dtype::U32),
        (FER_DTYPE_U64, Dtype::U64),
        (FER_DTYPE_BOOL, Dtype::Bool),
    ]
};

pub(crate) fn dtype(name: &str, number: u32) -> Result<Dtype> {
    let mut all = DTYPES.iter();
    let found = all.find(|(code, _)| *code as u32 == number);
    found.map(|(_, dtype)| *dtype).ok_or_else(|| {
        CallFailure::argument(name, format!("{number} is not a fer_dtype\ntry: 1 to 15"))
    })
}

pub(crate) fn dtype_name(number: u32) -> &'static CStr {
    const NAMES: [&CStr; 15] = [
        c"f64", c"f32", c"f16", c"bf16", c"f8e4m3", c"f8e5m2", c"i8", c"i16", c"i32", c"i64",
        c"u8", c"u16", c"u32", c"u64", c"bool",
    ];
    let at = number.checked_sub(1);
    let named = at.and_then(|at| NAMES.get(at as usize));
    named.copied().unwrap_or(c"unknown")
}

fn number_of(dtype: Dtype) -> u32 {
    let mut all = DTYPES.iter();
    // The table is complete, which a test verifies.
    all.find(|(_, it)| *it == dtype)
        .map_or(0, |(code, _)| *code as u32)
}

pub(crate) fn regime(name: &str, number: u32) -> Result<Regime> {
    match number {
        1 => Ok(Regime::Pool),
        2 => Ok(Regime::Driver),
        3 => Ok(Regime::Managed),
        4 => Ok(Regime::Pinned),
        6 => Ok(Regime::Callbacks),
        5 => Err(CallFailure::argument(
            name,
            "foreign memory must be imported, not allocated\ntry: fer_import_device_ptr",
        )),
        _ => Err(CallFailure::argument(
            name,
            format!("{number} is not a fer_regime\ntry: 1 to 4, or 6 with an allocator"),
        )),
    }
}

pub(crate) fn number_of_regime(regime: Regime) -> u32 {
    let code = match regime {
        Regime::Pool => fer_regime::FER_REGIME_POOL,
        Regime::Driver => fer_regime::FER_REGIME_DRIVER,
        Regime::Managed => fer_regime::FER_REGIME_MANAGED,
        Regime::Pinned => fer_regime::FER_REGIME_PINNED,
        Regime::Foreign => fer_regime::FER_REGIME_FOREIGN,
        Regime::Callbacks => fer_regime::FER_REGIME_CALLBACKS,
    };
    code as u32
}

pub(crate) fn rank(name: &str, rank: u32) -> Result<usize> {
    match rank as usize {
        rank if rank <= FER_MAX_RANK => Ok(rank),
        _ => Err(CallFailure::argument(
            name,
            format!("{rank} dimensions exceed the maximum of {FER_MAX_RANK}\ntry: fewer"),
        )),
    }
}

impl fer_layout {
    pub(crate) fn of(layout: &Layout) -> Self {
        let mut it = Self {
            dtype: number_of(layout.dtype()),
            rank: layout.shape().len() as u32,
            ..Self::default()
        };
        // The runtime's layouts have no more dimensions than these.
        it.shape[..layout.shape().len()].copy_from_slice(layout.shape());
        it.strides[..layout.strides().len()].copy_from_slice(layout.strides());
        it
    }

    pub(crate) fn read(&self) -> Result<Layout> {
        let dtype = dtype("layout.dtype", self.dtype)?;
        let rank = rank("layout.rank", self.rank)?;
        let (shape, strides) = (&self.shape[..rank], &self.strides[..rank]);
        Ok(Layout::strided(dtype, shape, strides)?)
    }
}

/// A name, truncated between characters, zero-terminated.
pub(super) fn fit(name: &str) -> [c_char; FER_NAME_BYTES] {
    let mut len = name.len().min(FER_NAME_BYTES - 1);
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    let mut fitted = [0; FER_NAME_BYTES];
    for (to, from) in fitted.iter_mut().zip(&name.as_bytes()[..len]) {
        *to = *from as c_char;
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_its_number() {
        for it in Dtype::ALL {
            let number = number_of(it);
            assert_eq!(dtype("dtype", number).unwrap(), it);
            assert_eq!(dtype_name(number).to_str().unwrap(), it.name());
        }
        assert_eq!(DTYPES.len(), Dtype::ALL.len());
        for none in [0, 16, u32::MAX] {
            assert!(dtype("dtype", none).is_err());
            assert_eq!(dtype_name(none), c"unknown");
        }
        assert_eq!(fercuda_runtime::MAX_RANK, FER_MAX_RANK);
    }

    #[test]
    fn layout_round_trips() {
        let layout = Layout::strided(Dtype::I16, &[2, 0, 5], &[-7, 1, 0]).unwrap();
        assert_eq!(fer_layout::of(&layout).read().unwrap(), layout);
        let deep = fer_layout {
            dtype: 1,
            rank: 9,
            ..fer_layout::default()
        };
        assert!(deep.read().unwrap_err().message.contains("9 dimensions"));
    }

    #[test]
    fn regimes_have_distinct_numbers() {
        for it in [
            Regime::Pool,
            Regime::Driver,
            Regime::Managed,
            Regime::Pinned,
            Regime::Callbacks,
        ] {
            assert_eq!(regime("regime", number_of_regime(it)).unwrap(), it);
        }
        assert!(regime("regime", 5).unwrap_err().message.contains("import"));
        assert!(regime("regime", 0).is_err() && regime("regime", 7).is_err());
    }

    #[test]
    fn names_are_cut_between_characters() {
        let read = |name: &str| {
            let bytes = fit(name).map(|byte| byte as u8);
            let len = bytes.iter().position(|byte| *byte == 0).unwrap();
            String::from_utf8(bytes[..len].to_vec()).unwrap()
        };
        assert_eq!(read("torch"), "torch");
        let long = format!("{}\u{e4}\u{e4}", "a".repeat(FER_NAME_BYTES - 2));
        assert_eq!(read(&long), "a".repeat(FER_NAME_BYTES - 2));
    }
}

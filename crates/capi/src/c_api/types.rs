//! Numbers and structures of the interface.
//!
//! Invariant: a structure that C fills has only integers, floats, addresses and unions
//! of them, so that no bits of it are wrong; what they mean is looked at.

use core::ffi::CStr;

use fercuda_runtime::{Dtype, Layout, Regime};

use crate::status::{Failure, Result};

/// Dimensions of a layout, at most.
pub const FER_MAX_RANK: usize = 8;
/// Bytes of a holder's name, with the zero byte.
pub const FER_NAME_BYTES: usize = 64;
/// Words of a task.
pub const FER_TASK_WORDS: usize = 4;
/// Spans of a task, at most.
pub const FER_TASK_SPANS: usize = 3;
/// Words of a graph's key, beside its generation.
pub const FER_KEY_WORDS: usize = 7;
/// As a timeout: for ever.
pub const FER_WAIT_FOREVER: u64 = u64::MAX;

/// A device with its pool.
pub type fer_runtime = u64;
/// Who owns buffers, and the order in which they are worked with.
pub type fer_session = u64;
/// Memory with a layout; of one session.
pub type fer_buffer = u64;
/// Work that nobody waits for yet.
pub type fer_job = u64;
/// Code that was loaded.
pub type fer_module = u64;
/// A kernel of a module.
pub type fer_kernel = u64;
/// Tensors that were planned into one buffer.
pub type fer_arena = u64;
/// A kernel that stays on the device and takes tasks.
pub type fer_dispatcher = u64;
/// A task that was submitted.
pub type fer_ticket = u64;
/// That a runtime may be asked by others.
pub type fer_requests = u64;
/// Graphs of a session, by keys.
pub type fer_graphs = u64;
/// What a graph is to do, while that is said.
pub type fer_capture = u64;
/// Device memory for what changes from replay to replay.
pub type fer_arguments = u64;

/// Which device.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_device {
    /// What the variable FERCUDA_DEVICE asks for (soft, gpu or auto).
    FER_DEVICE_FROM_ENVIRONMENT = 0,
    /// A GPU if there is one, else the software device.
    FER_DEVICE_AUTO = 1,
    /// A GPU, or an error.
    FER_DEVICE_GPU = 2,
    /// The software device, which executes kernels on the CPU.
    FER_DEVICE_SOFTWARE = 3,
}

/// What an element is.
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

/// What a buffer's memory is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_regime {
    /// A block of the process's pool.
    FER_REGIME_POOL = 1,
    /// Physical memory of its own that the driver gave and mapped.
    FER_REGIME_DRIVER = 2,
    /// One address for the host and all devices.
    FER_REGIME_MANAGED = 3,
    /// Page-locked memory of the host.
    FER_REGIME_PINNED = 4,
    /// Somebody else's (fer_import_device_ptr). Not to be asked for.
    FER_REGIME_FOREIGN = 5,
    /// What the session's own allocator gives (fer_session_open_with_allocator).
    FER_REGIME_CALLBACKS = 6,
}

/// How far a job is.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_job_state {
    /// It waits on the host, and can be cancelled.
    FER_JOB_WAITING = 1,
    /// The device has it.
    FER_JOB_RUNNING = 2,
    /// It is done, and went well.
    FER_JOB_DONE = 3,
    /// It failed; fer_job_wait says how.
    FER_JOB_FAILED = 4,
    /// It was cancelled.
    FER_JOB_CANCELLED = 5,
}

/// What kind of argument.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_argument_kind {
    /// The address of a buffer's first element: value.buffer.
    FER_ARGUMENT_BUFFER = 1,
    /// A number of 1, 2, 4 or 8 bytes: the member of value that has its type.
    FER_ARGUMENT_NUMBER = 2,
    /// A structure: value.structure leads to its bytes, which are copied.
    FER_ARGUMENT_STRUCTURE = 3,
}

/// What a task does. Its spans are whole elements of 4 bytes; words that are not named are
/// not read. A task that fails writes nothing, unless it was cancelled or has used up its
/// steps: then it has written a part.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum fer_task_number {
    /// to[i] = pattern: spans[0] is `to`, the low half of words[0] the pattern, a uint32_t.
    /// Gives back how many it has written.
    FER_TASK_FILL = 1,
    /// to[i] = from[i]: spans[0] is `to`, spans[1] `from`, of one length. They have nothing
    /// in common, or are one. Gives back how many it has written.
    FER_TASK_COPY = 2,
    /// y[i] = a * x[i] + y[i], rounded once: spans[0] is `y`, spans[1] `x`, floats, of one
    /// length; the low half of words[0] has the bits of `a`. They have nothing in common,
    /// or are one. Gives back how many it has written.
    FER_TASK_AXPY_F32 = 3,
    /// sum[0] = values[0] + values[1] + ..., modulo 2^32: spans[0] is `sum`, one uint32_t,
    /// spans[1] `values`, where it may lie. Gives back the sum.
    FER_TASK_SUM_U32 = 4,
    /// The same of floats. Each thread adds every so many-th value, as many as a block has
    /// threads, and what they have is added in pairs: the sum depends on the values and
    /// that number alone. Gives back the sum's bits.
    FER_TASK_SUM_F32 = 5,
}

/// Where elements lie, from the first one on. fer_layout_contiguous fills one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct fer_layout {
    /// What they are: a fer_dtype.
    pub dtype: u32,
    /// Dimensions, 0 (one element) to FER_MAX_RANK.
    pub rank: u32,
    /// How many elements along each dimension.
    pub shape: [u64; FER_MAX_RANK],
    /// How many elements lie from one to the next there; may be negative or 0.
    pub strides: [i64; FER_MAX_RANK],
}

/// What there is to say of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_buffer_details {
    /// Where its elements lie.
    pub layout: fer_layout,
    /// What uploads and downloads of it take, in bytes.
    pub bytes: u64,
    /// What its memory is: a fer_regime.
    pub regime: u32,
    /// 1 if its address was given out, else 0.
    pub is_exported: u32,
}

/// What there is to say of a session.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_session_details {
    /// What it holds of the device, in bytes; blocks are of 512.
    pub held_bytes: u64,
    /// The most that it has held.
    pub peak_bytes: u64,
    /// What it may hold; 0 for no limit.
    pub limit_bytes: u64,
    /// How many buffers it has.
    pub buffers: u64,
}

/// What the driver says of a device's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_memory_details {
    /// Free bytes.
    pub free_bytes: u64,
    /// All bytes.
    pub total_bytes: u64,
}

/// Who holds memory of a device in this process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_holder {
    /// The tenant's name, cut to fit, ended by a zero byte: a session's, or a library's.
    pub name: [core::ffi::c_char; FER_NAME_BYTES],
    /// Live blocks of the pool, in bytes.
    pub pooled_bytes: u64,
    /// What the driver gave by itself, also of the host, in bytes.
    pub governed_bytes: u64,
}

/// What a reboot came to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_reboot_details {
    /// How often the device's memory has begun anew.
    pub epoch: u64,
    /// Sessions that were ended.
    pub sessions: u64,
    /// Bytes that went back to the driver.
    pub returned_bytes: u64,
    /// 1 if the context had failed and was reset, else 0.
    pub was_reset: u32,
    /// How many others hold memory of the device still.
    pub others: u32,
}

/// The shape of a launch. What is 0 in `grid` and `block` is refused.
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

/// What a kernel is given. It is compared with what the kernel declares, where the
/// driver says that (CUDA 12.4 and later).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fer_argument {
    /// A fer_argument_kind.
    pub kind: u32,
    /// Bytes of a number (1, 2, 4, 8) or a structure (1 to 32764); 8 or 0 for a buffer.
    pub bytes: u32,
    /// What it is.
    pub value: fer_argument_value,
}

/// A buffer of an expression's, and its name in the text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_named_buffer {
    /// Its name, which ends with a zero byte.
    pub name: *const core::ffi::c_char,
    /// The buffer; of an output 0 for a new one, whose handle is put here.
    pub buffer: fer_buffer,
}

/// A tensor, and the steps of a program that need it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_tensor_spec {
    /// What it is found by; each has another.
    pub name: *const core::ffi::c_char,
    /// What an element is: a fer_dtype.
    pub dtype: u32,
    /// Dimensions.
    pub rank: u32,
    /// How many elements along each dimension; they lie side by side.
    pub shape: [u64; FER_MAX_RANK],
    /// The first step that needs it.
    pub from_step: u32,
    /// The first one after it that does not.
    pub until_step: u32,
}

/// What there is to say of an arena.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_arena_details {
    /// All of it, as bytes.
    pub buffer: fer_buffer,
    /// How many those are.
    pub bytes: u64,
    /// How many tensors lie there.
    pub tensors: u64,
}

/// How a dispatcher is set up. fer_dispatcher_defaults fills it in.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_dispatcher_options {
    /// Tasks that each priority has room for, a power of two.
    pub capacity: u32,
    /// How many priorities there are, 1 to 8.
    pub priorities: u32,
    /// Blocks that take tasks; each takes a place on the device.
    pub blocks: u32,
    /// Threads of a block, a multiple of 32, at most 1024.
    pub threads: u32,
    /// How long a block rests before it looks for tasks again.
    pub idle_ns: u32,
    /// Steps that each thread of a task may make, unless the task says; one for each
    /// element that it is about.
    pub steps: u32,
    /// A task that runs longer is cancelled by who waits; if it does not end in as long
    /// again, the dispatcher is lost.
    pub watchdog_ns: u64,
}

/// A part of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_task_span {
    /// One that the dispatcher was booted with.
    pub buffer: fer_buffer,
    /// Where it begins, from the buffer's first element on.
    pub offset_bytes: u64,
    /// How much it is.
    pub bytes: u64,
}

/// What a dispatcher is to do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_task {
    /// A fer_task_number.
    pub task: u32,
    /// 0 is the highest. A lower one is begun only when there are none of a higher.
    pub priority: u32,
    /// Steps that each thread may make; 0 for the dispatcher's.
    pub steps: u32,
    /// How many of the spans there are.
    pub span_count: u32,
    /// Numbers, of which each task says what they are.
    pub words: [u64; FER_TASK_WORDS],
    /// What it may touch.
    pub spans: [fer_task_span; FER_TASK_SPANS],
}

/// What a task gave.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_task_result {
    /// What each fer_task_number says.
    pub value: u64,
    /// Steps that its first thread made.
    pub steps: u64,
}

/// What there is to say of a dispatcher.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_dispatcher_details {
    /// Tasks that it was given.
    pub submitted: u64,
    /// Of those, how many wait or are run.
    pub depth: u64,
    /// How many have been run, well or not.
    pub done: u64,
    /// How many were given up: it ended before they did.
    pub lost: u64,
    /// Buffers that it was booted with.
    pub buffers: u64,
    /// Tasks that each priority has room for.
    pub capacity: u32,
    /// How many priorities there are.
    pub priorities: u32,
    /// 1 if it takes no more tasks, else 0.
    pub is_stopped: u32,
    /// 1 if a task runs for ever, else 0.
    pub is_lost: u32,
}

/// What a graph is kept under.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_graph_key {
    /// Of the model whose memory the graph uses: another number each time that moves.
    pub generation: u64,
    /// What else tells graphs apart, as the program likes.
    pub words: [u64; FER_KEY_WORDS],
}

/// What has become of a capture.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_graph_record {
    /// Pieces of work.
    pub nodes: u64,
    /// What the graph counts for in the budget.
    pub bytes: u64,
    /// 1 if a graph that was there has been updated, 0 if one was made anew.
    pub is_updated: u64,
    /// How long the host took to capture.
    pub capture_ns: u64,
    /// How long the host took to update or instantiate it.
    pub instantiate_ns: u64,
    /// How long the host took to send it to the device.
    pub upload_ns: u64,
}

/// How long a replay took.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_graph_times {
    /// The host, to send the graph to the device; once, when it was captured.
    pub upload_ns: u64,
    /// The host, to launch it.
    pub launch_ns: u64,
    /// The device, from the launch's turn to its end.
    pub device_ns: u64,
    /// The host, from before the launch until it was seen to be done.
    pub completion_ns: u64,
}

/// What graphs there are, and what has been done.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fer_graphs_details {
    /// Graphs that can be replayed.
    pub entries: u64,
    /// What they count for in the budget.
    pub bytes: u64,
    /// Graphs let go whose last replays run, or have not been asked after.
    pub retired: u64,
    /// Replays.
    pub replays: u64,
    /// Replays that found nothing.
    pub absent: u64,
    /// Graphs made.
    pub instantiated: u64,
    /// Graphs updated in place.
    pub updated: u64,
    /// Graphs let go for want of room.
    pub evicted: u64,
}

/// Types by their numbers, which C knows them by.
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
    found
        .map(|(_, dtype)| *dtype)
        .ok_or_else(|| Failure::argument(name, format!("{number} is no fer_dtype\ntry: 1 to 15")))
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
    // All that there are, which a test holds to.
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
        5 => Err(Failure::argument(
            name,
            "nobody allocates somebody else's memory\ntry: fer_import_device_ptr",
        )),
        _ => Err(Failure::argument(
            name,
            format!("{number} is no fer_regime\ntry: 1 to 4, or 6 with an allocator"),
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
        _ => Err(Failure::argument(
            name,
            format!("{rank} dimensions are more than the {FER_MAX_RANK} there can be\ntry: fewer"),
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
    fn a_layout_comes_back_as_it_was() {
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
    fn regimes_are_told_apart() {
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
}

//! What a user of the library holds in the hand. See the README.
#![deny(unsafe_code)]

mod account;
mod arguments;
mod callbacks;
mod dispatcher;
mod error;
mod graphs;
mod handles;
mod ignition;
mod jobs;
mod launches;
mod machine;
mod owned;
mod pieces;
mod plan;
mod requests;
mod resident;
mod session;
mod triton;
mod within;

pub use arguments::Arguments;
pub use callbacks::Allocator;
pub use dispatcher::{
    DispatchError, DispatchOptions, DispatchStats, Dispatcher, StandardTask, TASK_SPANS,
    TASK_WORDS, Task, TaskArgs, TaskBuffer, TaskBuffers, TaskDone, TaskError, TaskId, TaskJob,
    TaskSet, TaskSpan,
};
pub use error::{Error, Holder, Result, Why};
pub use fercuda_jit as jit;
pub use fercuda_tensor::{Dtype, Layout, LayoutError, MAX_RANK, UnknownDtype};
pub use graphs::{
    ArgumentBlock, BlockLayout, Budget, DecodeFields, Field, FieldType, GraphCache, GraphError,
    GraphKey, GraphKind, GraphStats, Key, Quantization, RecordOptions, Recorded, Recording,
    Scratch, Times, Timing,
};
pub use handles::{Full, Id, Stale, Table};
pub use ignition::{ALIGN_BYTES, IgnitionError, IgnitionPlan, TensorSpec};
pub use jobs::{Job, Status};
pub use launches::PreparedLaunch;
pub use machine::{MemoryInfo, Reboot, Runtime, RuntimeConfig};
pub use owned::{Evaluation, Graphs};
pub use plan::{Need, Plan, PlanError};
pub use requests::Requests;
pub use resident::Resident;
pub use session::{Argument, BufferId, Element, Exported, Regime, Session, SessionConfig};
pub use triton::{TritonError, TritonKernel, TritonMetadata};

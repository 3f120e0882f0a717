//! Safe runtime for user programs: sessions, buffers, jobs and graphs. See the README.
#![deny(unsafe_code)]

mod account;
mod arguments;
mod callbacks;
mod contiguous_runs;
mod error;
mod expressions;
mod foreign_streams;
mod graphs;
mod handles;
mod human_bytes;
mod ignition;
mod jobs;
mod launches;
mod lent_ranges;
mod lock;
mod operands;
mod plan;
mod requests;
mod resident;
mod resources;
mod runtime;
mod session;
mod session_graphs;
mod shared_device;
mod triton;

pub use account::LimitExceeded;
pub use arguments::SessionArguments;
pub use callbacks::MemoryAllocator;
pub use error::{EndReason, Error, Holder, Result};
pub use expressions::Evaluation;
pub use fercuda_dispatcher::{
    DispatchError, DispatchOptions, DispatchStats, Dispatcher, StandardTask, TASK_SPANS,
    TASK_WORDS, Task, TaskArgs, TaskBuffer, TaskBuffers, TaskDone, TaskError, TaskId, TaskJob,
    TaskSet, TaskSpan,
};
pub use fercuda_jit as jit;
pub use fercuda_tensor::{Dtype, Layout, LayoutError, MAX_RANK, UnknownDtype};
pub use graphs::{
    ArgumentBlock, BlockLayout, Field, FieldType, GraphBudget, GraphCache, GraphError, GraphKey,
    GraphStats, Key, RecordOptions, RecordedGraph, Recording, ReplayTimes, Scratch, Timing,
};
pub use handles::{GenerationalTable, HandleId, HandlesExhausted, StaleHandle};
pub use ignition::{ALIGN_BYTES, IgnitionError, IgnitionPlan, TensorSpec};
pub use jobs::{Job, Status};
pub use launches::PreparedLaunch;
pub use operands::BoundBuffer;
pub use plan::{Need, Plan, PlanError};
pub use requests::Requests;
pub use resident::Resident;
pub use runtime::{MemoryInfo, Reboot, Runtime, RuntimeConfig};
pub use session::{
    BufferElement, BufferId, Exported, LaunchArgument, Regime, Session, SessionConfig,
};
pub use session_graphs::Graphs;
pub use triton::{TritonError, TritonKernel, TritonMetadata};

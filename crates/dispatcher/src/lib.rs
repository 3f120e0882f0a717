//! Resident-kernel dispatcher: small tasks taken from queues by a kernel, without a launch for
//! each. See the README.
#![deny(unsafe_code)]

mod arguments;
mod backoff;
mod buffers;
mod dispatcher;
mod error;
mod job;
mod kernel;
mod kernel_state;
mod lock;
mod options;
mod queue;
mod reentrancy;
mod shutdown;
mod standard;
mod task;
mod task_set;
mod watchdog;
mod words;

pub use arguments::TaskArgs;
pub use buffers::{TaskBuffer, TaskBuffers};
pub use dispatcher::Dispatcher;
pub use error::{DispatchError, TaskError};
pub use job::TaskJob;
pub use kernel::TaskKernel;
pub use kernel_state::DispatchStats;
pub use options::DispatchOptions;
pub use queue::{TaskDone, TaskQueue};
pub use reentrancy::{TeardownScope, blocks_teardown};
pub use standard::StandardTask;
pub use task::{Task, TaskSpan};
pub use task_set::{KernelCache, TaskId, TaskSet};
pub use words::{TASK_SPANS, TASK_WORDS};

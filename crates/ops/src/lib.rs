//! Op facade: primitives of array programs behind one plan. See the README.
#![forbid(unsafe_code)]

mod cublaslt;
mod descriptor;
mod error;
mod kernels;
pub mod oracle;
mod plan;
pub mod registry;
mod row;
mod table;

pub use descriptor::OpDescriptor;
pub use error::OpError;
pub use kernels::{Backend, KERNELS, KernelRow, OpRequest};
pub use plan::{KernelPolicy, OpDevice, OpPlan, RejectedKernel, Sku};
pub use row::{Expected, Misfit, NativeRule, OpFamily, OpOracle, OpRow, ResultRule};

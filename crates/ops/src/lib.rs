//! Op facade: primitives of array programs behind one plan. See the README.
#![forbid(unsafe_code)]

mod arrays;
mod bound_names;
mod choices;
pub mod coverage;
mod cublaslt;
mod cufft;
mod descriptor;
mod error;
mod kernels;
mod named;
pub mod oracle;
mod parameters;
mod plan;
pub mod registry;
mod request;
mod row;
mod table;
mod tune;

pub use arrays::HostArray;
pub use descriptor::OpDescriptor;
pub use error::OpError;
pub use fercuda_kernels::KernelError;
pub use fercuda_kernels::token_attention::has_token_attention;
pub use kernels::{Backend, KERNELS, KernelRow};
pub use named::{OpParameterKind, OpParameterValue};
pub use parameters::{Misfit, OpParameters};
pub use plan::{KernelPolicy, OpDevice, OpPlan, RejectedKernel, Sku};
pub use request::OpRequest;
pub use row::{
    ExpectedElement, NativeRule, OpFamily, OpOracle, OpRow, ResultRule, RowLowering, RowResults,
    WholeReference,
};
pub use table::token_products::has_token_products;
pub use tune::{MeasuredKernel, OpMeasurement, OpTuner, TuneSet};

//! Names of operands and results in errors of bound memory.

use fercuda_jit::BoundNames;

use crate::row::OpRow;

/// Names of an op's operands and results.
pub(crate) struct RowNames(pub(crate) &'static OpRow);

impl BoundNames for RowNames {
    fn input(&self, at: usize) -> String {
        self.0.operand(at).to_owned()
    }

    fn output(&self, at: usize) -> String {
        self.0.results.get(at).copied().unwrap_or("out").to_owned()
    }
}

/// Names of what is checked beside a library's product.
pub(crate) struct FollowingNames;

impl BoundNames for FollowingNames {
    fn input(&self, _: usize) -> String {
        "residual".to_owned()
    }

    fn output(&self, _: usize) -> String {
        "out".to_owned()
    }
}

//! Names of operands and results in errors of bound memory.

use fercuda_jit::BoundNames;

use crate::row::OpRow;

/// Names of an op's operands and results.
pub(crate) struct RowNames(pub(crate) &'static OpRow);

impl BoundNames for RowNames {
    fn input(&self, at: usize) -> String {
        let (name, row) = (self.0.operand(at), self.0);
        // Of one of many the number too.
        match at.checked_sub(row.singles()) {
            Some(beyond) if row.repeated > 1 => format!("{name} {}", beyond / row.repeated),
            _ => name.to_owned(),
        }
    }

    fn output(&self, at: usize) -> String {
        self.0.result(at).to_owned()
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

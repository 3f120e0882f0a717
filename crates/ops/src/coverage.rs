//! Coverage table: which kernels compute which op, as the page docs/ops.md.
//!
//! Invariant: docs/ops.md is the text of [`page`]; a test compares them.

use std::fmt::Write;

use fercuda_tensor::{Dtype, Layout};

use crate::descriptor::OpDescriptor;
use crate::kernels::{KERNELS, KernelRow};
use crate::registry::rows;
use crate::request::OpRequest;
use crate::row::{OpFamily, OpRow};

/// The architecture that the table is for.
const NEWEST: u32 = 90;

/// The kernels that compute an op, each with whether it does for one element of the first type that
/// the op accepts, on a device that has all instructions and libraries; else why not.
pub fn kernels_of(row: &'static OpRow) -> Vec<(&'static KernelRow, Result<(), String>)> {
    let dtype = row.dtypes().next().unwrap_or(Dtype::F32);
    // A complex number is two elements.
    let is_complex = row.family == OpFamily::Transform && row.name != "rfft";
    let layout = Layout::contiguous(dtype, &[1, 1 + u64::from(is_complex)]);
    let (Ok(layout), Ok(op)) = (layout, OpDescriptor::new(row.name)) else {
        return Vec::new();
    };
    let operands = vec![layout; row.operands.len() - row.optional];
    let request = OpRequest {
        op: &op,
        operands: &operands,
        outputs: &[layout],
        arch: NEWEST,
        no_compiler: None,
        no_cublaslt: None,
        no_cufft: None,
    };
    let all = KERNELS.iter().filter(|kernel| (kernel.computes)(row));
    all.map(|kernel| (kernel, (kernel.supports)(&request)))
        .collect()
}

/// Names of the kernels that support an op.
pub fn supporting(row: &'static OpRow) -> Vec<&'static str> {
    let all = kernels_of(row).into_iter();
    all.filter(|(_, support)| support.is_ok())
        .map(|(kernel, _)| kernel.id)
        .collect()
}

/// The types that an op accepts, or all but a few.
fn types(row: &OpRow) -> String {
    format!("{} ({})", row.types, row.dtypes().count())
}

/// The page docs/ops.md.
pub fn page() -> String {
    let mut page = String::from(
        "# Ops\n\nGenerated from the registry of `fercuda-ops` by\n`cargo run -p fercuda-ops --example \
         coverage > docs/ops.md`.\n`?` marks an operand that may be left out. An error bound is \
         derived from an op's expression, as\n[its README](https://github.com/DaronPopov/\
         feRcuda_runtime/blob/main/crates/ops/README.md) says.\n",
    );
    let count = rows().count();
    let mut add = |line: String| page.push_str(&line);
    add(format!(
        "\n{count} ops, each with a reference in f64.\n\n## Kernels\n"
    ));
    add(
        "| kernel | backend | order | accumulator | deterministic |\n|---|---|---|---|---|\n"
            .into(),
    );
    for kernel in KERNELS {
        add(format!(
            "| `{}` | {:?} | {} | {} | {} |\n",
            kernel.id,
            kernel.backend,
            kernel.order,
            kernel.accumulator,
            if kernel.is_deterministic { "yes" } else { "no" },
        ));
    }
    for family in OpFamily::ALL {
        let mut section = String::new();
        let mut members = 0;
        for row in rows().filter(|row| row.family == family) {
            members += 1;
            let kernel = supporting(row).join(", ");
            let doc = row.doc.replace('|', "\\|");
            let (call, types) = (row.signature(), types(row));
            writeln!(section, "| `{call}` | {doc} | {types} | `{kernel}` |").unwrap_or_default();
        }
        add(format!("\n## {family} ({members})\n"));
        add("| op | is | types | kernel |\n|---|---|---|---|\n".into());
        add(section);
    }
    page
}

//! Registry of ops: look-up by name, and the coverage table.
//!
//! Invariant: docs/ops.md is the text of [`coverage`]; a test compares them.

use std::fmt::Write;
use std::sync::OnceLock;

use fercuda_tensor::{Dtype, Layout};

use crate::descriptor::OpDescriptor;
use crate::error::OpError;
use crate::kernels::{KERNELS, OpRequest};
use crate::row::{OpFamily, OpRow};
use crate::table;

/// The architecture that the coverage table is for.
const NEWEST: u32 = 90;

/// All ops, by families.
pub fn rows() -> impl Iterator<Item = &'static OpRow> {
    table::PARTS.into_iter().flatten()
}

fn by_name() -> &'static [&'static OpRow] {
    static SORTED: OnceLock<Vec<&'static OpRow>> = OnceLock::new();
    SORTED.get_or_init(|| {
        let mut all: Vec<_> = rows().collect();
        all.sort_by_key(|row| row.name);
        all
    })
}

/// The op of that name.
///
/// # Errors
/// [`OpError::Unknown`], with names that have a part in common.
pub fn find(name: &str) -> Result<&'static OpRow, OpError> {
    let all = by_name();
    if let Ok(at) = all.binary_search_by_key(&name, |row| row.name) {
        return Ok(all[at]);
    }
    let part = |known: &str| {
        let parts = || name.split('_').filter(|part| part.len() > 2);
        parts().any(|part| known.contains(part)) || name.contains(known)
    };
    let near: Vec<&str> = all
        .iter()
        .map(|row| row.name)
        .filter(|known| part(known))
        .collect();
    let hint = match near.is_empty() {
        true => "one of docs/ops.md".to_owned(),
        false => near[..near.len().min(8)].join(", "),
    };
    let name = name.to_owned();
    Err(OpError::Unknown { name, hint })
}

/// The row of an op that `find` has found before.
pub(crate) fn row(name: &'static str) -> &'static OpRow {
    let all = by_name();
    let at = all.partition_point(|row| row.name < name);
    all[at]
}

/// Names of the kernels that support an op, of the first type that it accepts, on a device that
/// has instructions for all types.
pub fn kernels_of(row: &'static OpRow) -> Vec<&'static str> {
    let dtype = row.dtypes().next().unwrap_or(Dtype::F32);
    let Ok(layout) = Layout::contiguous(dtype, &[1]) else {
        return Vec::new();
    };
    let Ok(op) = OpDescriptor::new(row.name) else {
        return Vec::new();
    };
    let request = OpRequest {
        op: &op,
        operands: &[layout],
        outputs: &[layout],
        arch: NEWEST,
        no_compiler: None,
        no_cublaslt: None,
    };
    let all = KERNELS.iter();
    all.filter(|kernel| (kernel.supports)(&request).is_ok())
        .map(|kernel| kernel.id)
        .collect()
}

/// The types that an op accepts, or all but a few.
fn types(row: &OpRow) -> String {
    format!("{} ({})", row.types, row.dtypes().count())
}

/// The page docs/ops.md.
pub fn coverage() -> String {
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
            let kernel = kernels_of(row).join(", ");
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

//! The coverage table in docs, and the table of ops itself.

use std::collections::HashSet;

use fercuda_ops::{OpDescriptor, OpFamily, coverage, registry};

#[test]
fn page_of_ops_is_generated_from_the_registry() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ops.md");
    let page = std::fs::read_to_string(path).unwrap();
    assert!(
        page == coverage::page(),
        "docs/ops.md is out of date\ntry: cargo run -p fercuda-ops --example coverage > docs/ops.md"
    );
}

#[test]
fn names_are_unique_and_every_row_says_what_it_computes() {
    let mut names = HashSet::new();
    for row in registry::rows() {
        assert!(names.insert(row.name), "two ops {}", row.name);
        assert!(
            !row.doc.is_empty() && !row.doc.contains('\n'),
            "{}",
            row.name
        );
        for operand in row.operands {
            let parameter = format!("{{{operand}}}");
            assert!(!row.text.contains(&parameter), "{}: {operand}", row.name);
        }
        for (number, _) in row.numbers {
            let is_used = !row.is_expression()
                || row.has(number)
                || *number == "correction" && row.has("dof");
            assert!(is_used, "{}: {number}", row.name);
        }
        assert_eq!(OpDescriptor::new(row.name).unwrap().name(), row.name);
    }
    for family in OpFamily::ALL {
        assert!(registry::rows().any(|row| row.family == family), "{family}");
    }
}

#[test]
fn unknown_name_is_answered_with_similar_ones() {
    let error = OpDescriptor::new("relu_forward").unwrap_err().to_string();
    assert!(error.contains("there is no op \"relu_forward\""), "{error}");
    assert!(error.contains("leaky_relu"), "{error}");
    let error = OpDescriptor::new("zz").unwrap_err().to_string();
    assert!(error.contains("docs/ops.md"), "{error}");
}

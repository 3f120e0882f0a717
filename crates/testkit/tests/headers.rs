//! Static tests of the corpus's headers.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests, which may as the tests may"
)]

use std::collections::BTreeSet;
use std::path::Path;

use fercuda_testkit::data::{Expected, Judge};
use fercuda_testkit::{filetest, reference};

fn corpus() -> Vec<filetest::FileTest> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|f| f.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|f| {
            filetest::parse(
                f.file_stem().unwrap().to_str().unwrap(),
                &std::fs::read_to_string(f).unwrap(),
            )
            .unwrap()
        })
        .collect()
}

#[test]
fn every_launch_has_one_reference_and_every_reference_a_launch() {
    let names: Vec<String> = corpus()
        .into_iter()
        .flat_map(|f| f.runs)
        .map(|r| r.name)
        .collect();
    let launches: BTreeSet<_> = names.iter().map(String::as_str).collect();
    assert_eq!(launches.len(), names.len(), "a run's name is used twice");
    let references: BTreeSet<_> = reference::all().map(|r| r.run).collect();
    assert_eq!(launches, references);
}

#[test]
fn every_reference_speaks_of_every_output_in_its_size() {
    let seed = fercuda_trials::seed();
    for run in corpus().into_iter().flat_map(|f| f.runs) {
        let reference = reference::find(&run.name).unwrap();
        let case = run.case(Some(reference), seed);
        let mut expected = Expected::default();
        (reference.expect)(&case, &mut expected);
        for arg in run
            .args
            .iter()
            .filter(|a| a.is_output() && a.judge != Judge::Raw)
        {
            let wanted = expected
                .outputs
                .remove(&arg.name)
                .unwrap_or_else(|| panic!("{}: nothing is said of `{}`", run.name, arg.name));
            let len = match wanted {
                fercuda_testkit::data::ExpectedOutput::Bits(bytes) => {
                    bytes.len() / arg.elem.bytes() as usize
                }
                fercuda_testkit::data::ExpectedOutput::Near(values) => values.len(),
            };
            assert_eq!(len, arg.len, "{}: `{}` (seed {seed})", run.name, arg.name);
        }
        assert!(
            expected.outputs.is_empty(),
            "{}: the header has no {:?}",
            run.name,
            expected.outputs.keys()
        );
    }
}

#[test]
fn the_same_seed_makes_the_same_inputs_and_another_seed_others() {
    let files = corpus();
    let run = files
        .iter()
        .flat_map(|f| &f.runs)
        .find(|r| r.name == "block_tree")
        .unwrap();
    let reference = reference::find("block_tree").unwrap();
    assert_eq!(
        run.case(Some(reference), 7).buffers,
        run.case(Some(reference), 7).buffers
    );
    assert_ne!(
        run.case(Some(reference), 7).buffers,
        run.case(Some(reference), 8).buffers
    );
}

#[test]
fn a_bad_header_line_is_named() {
    let wrong = "//@ run a: k grid=1 block=1\n//@   in x: f32[4] evenly\n";
    assert_eq!(
        filetest::parse("f", wrong).unwrap_err().to_string(),
        "f.cu:2: `evenly` is neither a fill nor a judge"
    );
    assert!(
        filetest::parse("f", "int x;")
            .unwrap_err()
            .to_string()
            .contains("no `//@ run`")
    );
}

//! Plans of tensors: a saved plan reads back equal, and nothing in a file is trusted.

use fercuda_runtime::{Dtype, IgnitionError, IgnitionPlan, TensorSpec};
use proptest::prelude::*;

fn tensors() -> impl Strategy<Value = Vec<TensorSpec>> {
    let tensor = (
        prop::sample::select(Dtype::ALL.to_vec()),
        prop::collection::vec(0_u64..40, 0..4),
        0_u32..20,
        1_u32..6,
    );
    prop::collection::vec(tensor, 0..30).prop_map(|all| {
        let named = all.into_iter().enumerate();
        named
            .map(|(n, (dtype, shape, from, steps))| TensorSpec {
                name: format!("tensor \"{n}\""),
                dtype,
                shape,
                from,
                until: from + steps,
            })
            .collect()
    })
}

/// Whether two tensors with overlapping lifetimes overlap, or one leaves the arena; checked pair by
/// pair.
fn is_wrong(plan: &[(TensorSpec, u64)], arena_bytes: u64) -> bool {
    let end = |(tensor, begin): &(TensorSpec, u64)| {
        begin.saturating_add(tensor.layout().map_or(0, |layout| layout.bytes()))
    };
    let apart = |a: &(TensorSpec, u64), b: &(TensorSpec, u64)| {
        let meet = a.0.from < b.0.until && b.0.from < a.0.until;
        let some = |it: &(TensorSpec, u64)| end(it) > it.1;
        !meet || !some(a) || !some(b) || end(a) <= b.1 || end(b) <= a.1
    };
    let pairs = (0..plan.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
    let all_apart = { pairs }.all(|(a, b)| apart(&plan[a], &plan[b]));
    !all_apart
        || plan
            .iter()
            .any(|it| end(it) > arena_bytes || it.1 % 256 != 0)
}

fn read(plan: &[(TensorSpec, u64)], arena_bytes: u64) -> Result<IgnitionPlan, IgnitionError> {
    let tensors: Vec<serde_json::Value> = plan
        .iter()
        .map(|(tensor, begin)| {
            serde_json::json!({"name": tensor.name, "dtype": tensor.dtype.name(), "shape": tensor.shape,
                "from": tensor.from, "until": tensor.until, "begin_bytes": begin})
        })
        .collect();
    let text = serde_json::json!({"version": 1, "arena_bytes": arena_bytes, "tensors": tensors});
    IgnitionPlan::from_json(&text.to_string())
}

proptest! {
    #[test]
    fn saved_plan_reads_back_equal(tensors in tensors()) {
        let plan = IgnitionPlan::new(tensors.clone());
        prop_assert!(plan.is_ok(), "{:?}", plan);
        let Ok(plan) = plan else { return Ok(()) };
        let lies: Vec<(TensorSpec, u64)> = plan.tensors().map(|(tensor, begin)| (tensor.clone(), begin)).collect();
        prop_assert!(lies.iter().map(|(tensor, _)| tensor).eq(&tensors));
        prop_assert!(!is_wrong(&lies, plan.arena_bytes()));
        prop_assert_eq!(IgnitionPlan::from_json(&plan.to_json()), Ok(plan));
    }

    #[test]
    fn invalid_offset_is_refused(tensors in tensors(), at in any::<prop::sample::Index>(), to in 0_u64..40, by in 0_u64..2, less in 0_u64..600) {
        let Ok(plan) = IgnitionPlan::new(tensors) else { return Ok(()) };
        let mut lies: Vec<(TensorSpec, u64)> = plan.tensors().map(|(tensor, begin)| (tensor.clone(), begin)).collect();
        prop_assume!(!lies.is_empty());
        let place = at.index(lies.len());
        lies[place].1 = to * 256 + by;
        let arena_bytes = plan.arena_bytes().saturating_sub(less.saturating_sub(300));
        let is_refused = matches!(read(&lies, arena_bytes), Err(IgnitionError::Place { .. }));
        prop_assert_eq!(is_refused, is_wrong(&lies, arena_bytes), "{:?} in {}", lies, arena_bytes);
    }

    #[test]
    fn no_text_makes_parsing_panic(text in ".{0,200}", cut in 0_usize..2000, byte in any::<u8>(), tensors in tensors()) {
        prop_assert!(IgnitionPlan::from_json(&text).is_err());
        let Ok(plan) = IgnitionPlan::new(tensors) else { return Ok(()) };
        let mut bytes = plan.to_json().into_bytes();
        let at = cut % bytes.len();
        bytes[at] = byte;
        // Whatever it is now, it is parsed or refused; and a parsed plan holds.
        let read = IgnitionPlan::from_json(&String::from_utf8_lossy(&bytes));
        if let Ok(read) = read {
            let lies: Vec<(TensorSpec, u64)> = read.tensors().map(|(tensor, begin)| (tensor.clone(), begin)).collect();
            prop_assert!(!is_wrong(&lies, read.arena_bytes()));
        }
    }
}

#[test]
fn errors_name_the_tensor() {
    let tensor = |name: &str, shape: &[u64], from: u32| TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        from,
        until: 5,
    };
    let said =
        |tensors: Vec<TensorSpec>| IgnitionPlan::new(tensors).map_err(|error| error.to_string());
    let is = |tensors: Vec<TensorSpec>, what: &str| {
        said(tensors).is_err_and(|said| said.starts_with(what))
    };
    let good = || tensor("good", &[4], 0);
    assert!(is(vec![good(), good()], "there are two tensors \"good\""));
    assert!(is(
        vec![good(), tensor("large", &[1 << 62, 4], 0)],
        "tensor \"large\": [4611686018427387904, 4] of f32"
    ));
    assert!(is(
        vec![good(), tensor("late", &[4], 6)],
        "tensor \"late\" is needed from step 6 until 5"
    ));
    let other = IgnitionPlan::from_json(r#"{"version": 2, "arena_bytes": 0, "tensors": []}"#);
    assert_eq!(other, Err(IgnitionError::Version { version: 2 }));
    let other =
        IgnitionPlan::from_json(r#"{"version": 1, "arena_bytes": 0, "tensors": [], "more": 1}"#);
    assert!(matches!(other, Err(IgnitionError::Format { why }) if why.contains("more")));
}

//! Plans against an exact solver, where that is feasible, and against invariants of every plan.

use fercuda_runtime::{Need, Plan, PlanError};
use proptest::prelude::*;

fn needs(most: usize, bytes: u64, steps: u32) -> impl Strategy<Value = Vec<Need>> {
    let need = (0..bytes, 0_u32..4, 0..steps, 0..steps).prop_map(|(bytes, align, a, b)| Need {
        bytes,
        align_bytes: 1 << align,
        from: a.min(b),
        until: a.max(b) + 1,
    });
    prop::collection::vec(need, 0..most)
}

/// Invariants of every plan.
fn holds(needs: &[Need], plan: &Plan) {
    assert_eq!(plan.begins().len(), needs.len());
    let end = |at: usize| plan.begins()[at] + needs[at].bytes;
    for (a, need) in needs.iter().enumerate() {
        let begin = plan.begins()[a];
        assert_eq!(begin % need.align_bytes, 0);
        assert!(need.bytes == 0 || need.from == need.until || end(a) <= plan.bytes());
        for (b, other) in needs.iter().enumerate().skip(a + 1) {
            let meet = need.from < other.until && other.from < need.until;
            let apart = end(a) <= plan.begins()[b] || end(b) <= begin;
            assert!(
                !meet || apart || need.bytes == 0 || other.bytes == 0,
                "{a} and {b}: {needs:?} {plan:?}"
            );
        }
    }
    let steps = needs.iter().map(|need| need.from);
    let live = |step: u32| {
        let there = needs
            .iter()
            .filter(move |need| (need.from..need.until).contains(&step));
        there.map(|need| need.bytes).sum::<u64>()
    };
    assert_eq!(plan.floor_bytes(), steps.map(live).max().unwrap_or(0));
    assert!(plan.bytes() >= plan.floor_bytes());
}

/// The optimal arena. In some order of the needs, that of their offsets in an optimal plan, each is
/// as low as the ones before it allow.
fn smallest(needs: &[Need]) -> u64 {
    fn go(needs: &[Need], placed: &mut Vec<(usize, u64)>, end: u64, best: &mut u64) {
        if end >= *best {
            return;
        }
        if placed.len() == needs.len() {
            *best = end;
            return;
        }
        for (at, need) in needs.iter().enumerate() {
            if placed.iter().any(|(other, _)| *other == at) {
                continue;
            }
            let mut below: Vec<(u64, u64)> = placed
                .iter()
                .filter(|(other, _)| {
                    needs[*other].from < need.until && need.from < needs[*other].until
                })
                .map(|(other, begin)| (*begin, begin + needs[*other].bytes))
                .collect();
            below.sort_unstable();
            let mut begin: u64 = 0;
            for (from, to) in below {
                if begin + need.bytes > from {
                    begin = begin.max(to.next_multiple_of(need.align_bytes));
                }
            }
            placed.push((at, begin));
            go(needs, placed, end.max(begin + need.bytes), best);
            placed.pop();
        }
    }
    let needs: Vec<Need> = needs
        .iter()
        .filter(|need| need.bytes > 0)
        .copied()
        .collect();
    let mut best = u64::MAX;
    go(&needs, &mut Vec::new(), 0, &mut best);
    best
}

proptest! {
    #[test]
    fn live_needs_never_overlap(needs in needs(60, 1000, 40)) {
        holds(&needs, &Plan::of(&needs).unwrap());
    }

    #[test]
    fn plan_of_a_few_needs_is_optimal(needs in prop_oneof![needs(8, 12, 8), needs(8, 1000, 5)]) {
        let plan = Plan::of(&needs).unwrap();
        holds(&needs, &plan);
        prop_assert_eq!(plan.bytes(), smallest(&needs), "{:?} {:?}", needs, plan);
    }

    #[test]
    fn permanent_or_disjoint_needs_have_no_waste(sizes in prop::collection::vec(1_u64..1000, 1..50), steps in 1_u32..9) {
        let need = |(at, bytes): (u32, &u64), together: bool| Need {
            bytes: *bytes,
            align_bytes: 1,
            from: if together { 0 } else { at * steps },
            until: if together { steps } else { (at + 1) * steps },
        };
        let together: Vec<Need> = (0..).zip(&sizes).map(|it| need(it, true)).collect();
        let apart: Vec<Need> = (0..).zip(&sizes).map(|it| need(it, false)).collect();
        for needs in [together, apart] {
            let plan = Plan::of(&needs).unwrap();
            holds(&needs, &plan);
            prop_assert_eq!(plan.bytes(), plan.floor_bytes());
        }
    }
}

#[test]
fn invalid_needs_are_refused() {
    let need = Need {
        bytes: 100,
        align_bytes: 256,
        from: 1,
        until: 3,
    };
    let wrong = |wrong: Need| Plan::of(&[need, wrong]).unwrap_err();
    assert_eq!(
        wrong(Need {
            align_bytes: 24,
            ..need
        }),
        PlanError::Align {
            need: 1,
            align_bytes: 24
        }
    );
    assert_eq!(
        wrong(Need {
            align_bytes: 0,
            ..need
        }),
        PlanError::Align {
            need: 1,
            align_bytes: 0
        }
    );
    assert_eq!(
        wrong(Need { from: 4, ..need }),
        PlanError::Steps {
            need: 1,
            from: 4,
            until: 3
        }
    );
    for bytes in [u64::MAX, 1 << 56, (1 << 56) - 100] {
        assert_eq!(
            wrong(Need { bytes, ..need }),
            PlanError::TooLarge { need: 1, bytes }
        );
    }
    let plan = Plan::of(&[]).unwrap();
    assert_eq!((plan.bytes(), plan.floor_bytes()), (0, 0));
    let never = Need { from: 3, ..need };
    assert_eq!(Plan::of(&[never, never]).unwrap().bytes(), 0);
}

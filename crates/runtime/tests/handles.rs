//! Handles against a model that remembers all that were ever returned.

use std::collections::HashMap;

use fercuda_runtime::{GenerationalTable, HandleId, StaleHandle};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Insert,
    /// One of the handles returned so far, live or not.
    Remove(prop::sample::Index),
    Change(prop::sample::Index),
    /// Any number.
    Guess(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => Just(Op::Insert),
        3 => any::<prop::sample::Index>().prop_map(Op::Remove),
        2 => any::<prop::sample::Index>().prop_map(Op::Change),
        1 => any::<u64>().prop_map(Op::Guess),
    ];
    prop::collection::vec(op, 0..200)
}

proptest! {
    #[test]
    fn handle_names_one_value_for_ever_or_nothing(ops in ops(), number in any::<u16>()) {
        let mut table = GenerationalTable::new(number);
        let mut given: Vec<HandleId> = Vec::new();
        let mut live: HashMap<HandleId, usize> = HashMap::new();
        for (n, op) in ops.iter().enumerate() {
            match op {
                Op::Insert => {
                    let id = table.insert(n).unwrap();
                    prop_assert!(!given.contains(&id));
                    prop_assert_eq!(HandleId::from_bits(id.to_bits()), Some(id));
                    given.push(id);
                    live.insert(id, n);
                }
                Op::Remove(at) if !given.is_empty() => {
                    let id = *at.get(&given);
                    prop_assert_eq!(table.remove(id).ok(), live.remove(&id));
                }
                Op::Change(at) if !given.is_empty() => {
                    let id = *at.get(&given);
                    prop_assert_eq!(table.get_mut(id).ok().map(|value| { *value += 1; *value }), live.get_mut(&id).map(|value| { *value += 1; *value }));
                }
                Op::Guess(bits) => {
                    let Some(id) = HandleId::from_bits(*bits) else { continue };
                    prop_assert_eq!(table.get(id).ok(), live.get(&id));
                }
                Op::Remove(_) | Op::Change(_) => {}
            }
            for id in &given {
                match (table.get(*id), live.get(id)) {
                    (Ok(value), Some(expected)) => prop_assert_eq!(value, expected),
                    (Err(StaleHandle::Freed { .. } | StaleHandle::Replaced { .. }), None) => {}
                    (got, expected) => prop_assert!(false, "{}: {:?}, not {:?}", id, got, expected),
                }
                let elsewhere = GenerationalTable::<usize>::new(number.wrapping_add(1));
                let is_foreign = matches!(elsewhere.get(*id), Err(StaleHandle::Foreign { .. }));
                prop_assert!(is_foreign);
            }
            prop_assert_eq!((table.len(), table.is_empty()), (live.len(), live.is_empty()));
            let mut all: Vec<_> = table.iter().map(|(id, value)| (id, *value)).collect();
            let mut expected: Vec<_> = live.iter().map(|(id, value)| (*id, *value)).collect();
            all.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(all, expected);
        }
    }
}

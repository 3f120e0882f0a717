//! Any bytes are a program; the shadow sees what the pool does with it.
#![no_main]

#[path = "../../tests/model/mod.rs"]
mod model;

use model::{Kind, Op, World};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((kind, bytes)) = bytes.split_first() else {
        return;
    };
    let is_odd = kind % 2 == 1;
    let mut world = World::new(if is_odd { Kind::Slabs } else { Kind::Pieces });
    for bits in bytes.as_chunks::<8>().0 {
        let op = Op::from_bits(u64::from_le_bytes(*bits));
        if let Err(wrong) = world.step(op) {
            panic!("{op:?}: {wrong}");
        }
    }
    if let Err(wrong) = world.audit().and_then(|()| world.end()) {
        panic!("{wrong}");
    }
});

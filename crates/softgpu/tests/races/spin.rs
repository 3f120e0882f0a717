//! Cost of threads that wait for a lock.

use std::time::{Duration, Instant};

use fercuda_softgpu::check::CheckOptions;

use super::machine::{Kernel, launch};

/// Each thread takes a lock, adds one, and gives the lock back.
const LOCKS: [(&str, &str); 3] = [
    ("a lock by exchange", "
L:  atom.global.exch.b32 %r20, [%rd1], 1; setp.ne.u32 %p1, %r20, 0; @%p1 bra L;
    membar.gl; ld.volatile.global.u32 %r21, [%rd1+4]; add.u32 %r21, %r21, 1; st.volatile.global.u32 [%rd1+4], %r21;
    membar.gl; atom.global.exch.b32 %r22, [%rd1], 0;"),
    ("a lock that is tried", "
L:  atom.global.cas.b32 %r20, [%rd1], 0, 1; setp.ne.u32 %p1, %r20, 0; @%p1 bra NEXT;
    membar.gl; ld.volatile.global.u32 %r21, [%rd1+4]; add.u32 %r21, %r21, 1; st.volatile.global.u32 [%rd1+4], %r21;
    membar.gl; atom.global.exch.b32 %r22, [%rd1], 0; mov.u32 %r23, 1;
NEXT: setp.eq.u32 %p2, %r20, 0; @!%p2 bra L;"),
    ("a lock of tickets", "
    atom.global.add.u32 %r20, [%rd1], 1;
L:  ld.volatile.global.u32 %r21, [%rd1+8]; setp.ne.u32 %p1, %r21, %r20; @%p1 bra L;
    membar.gl; ld.volatile.global.u32 %r22, [%rd1+4]; add.u32 %r22, %r22, 1; st.volatile.global.u32 [%rd1+4], %r22;
    membar.gl; add.u32 %r21, %r21, 1; st.volatile.global.u32 [%rd1+8], %r21;"),
];

#[test]
fn a_lock_costs_as_much_for_each_of_many_threads_as_of_few() {
    for (name, body) in LOCKS {
        for options in [None, Some(CheckOptions::default())] {
            let cost = |blocks, threads| {
                let kernel: Kernel = (name, blocks, threads, body);
                let begun = Instant::now();
                let o = launch(kernel, options, 1);
                assert_eq!(o.words[1], blocks * threads, "{name}");
                assert!(begun.elapsed() < Duration::from_secs(20), "{name}");
                o.stats.warp_instructions as f64
            };
            let (few, many) = (cost(1, 128), cost(1, 1024));
            assert!(many / few < 12.0, "{name}: {few} and {many} instructions");
            let blocks = cost(16, 128);
            assert!(
                blocks / few < 32.0,
                "{name}: {few} and {blocks} instructions"
            );
        }
    }
}

//! Divergence, calls, and communication between the lanes of a warp.

use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};

pub(super) const TABLE: &[Reference] = &[
    Reference::new("recursion", recursion),
    Reference::new("quicksort", quicksort),
    Reference::new("dispatch", dispatch),
    Reference::new("collatz", collatz),
    Reference::new("tangled", tangled),
    Reference::new("early_exit", early_exit),
    Reference::new("barrier_loop", barrier_loop),
    Reference::new("shuffles", shuffles),
    Reference::new("votes", votes),
    Reference::new("cg_tiles", cg_tiles),
    Reference::new("printing", printing),
    Reference::new("life", life),
];

fn recursion(_: &LaunchInputs, e: &mut Expected) {
    let mut fib = vec![0u32, 1];
    while fib.len() < 11 {
        fib.push(fib[fib.len() - 1] + fib[fib.len() - 2]);
    }
    e.exact(
        "fibonacci",
        &(0..64).map(|t| fib[t % 11]).collect::<Vec<_>>(),
    );
    // Ackermann's function in closed form for its first three rows.
    e.exact(
        "ackermann",
        &(0..64u32)
            .map(|t| match (t % 3, t % 3) {
                (0, n) => n + 1,
                (1, n) => n + 2,
                (_, n) => 2 * n + 3,
            })
            .collect::<Vec<_>>(),
    );
    e.exact(
        "parity",
        &(0..64u32).map(|t| 1 - t % 16 % 2).collect::<Vec<_>>(),
    );
    // Move m of n discs, from m's binary digits: disc by trailing zeros, pegs by the usual cyclic
    // rule.
    let hash = |n: u32| {
        (1..1u64 << n).fold(14_695_981_039_346_656_037u64, |h, m| {
            let disc = m.trailing_zeros();
            // The largest disc goes from 0 to 2 in one step round the ring; each smaller one turns
            // the other way.
            let turn = |k: u64| {
                if (n - disc) % 2 == 1 {
                    (2 * k) % 3
                } else {
                    k % 3
                }
            };
            let nth = m >> (disc + 1);
            h.wrapping_mul(1_099_511_628_211)
                .wrapping_add(turn(nth) * 16 + turn(nth + 1) * 4 + u64::from(disc + 1))
        })
    };
    e.exact("hanoi", &(0..64).map(|t| hash(t % 6)).collect::<Vec<_>>());
}

fn quicksort(c: &LaunchInputs, e: &mut Expected) {
    for name in ["recursive", "stacked"] {
        let mut x: Vec<i32> = c.get(name);
        x.chunks_mut(32).for_each(<[i32]>::sort_unstable);
        e.exact(name, &x);
    }
}

fn dispatch(c: &LaunchInputs, e: &mut Expected) {
    let (x, which) = (c.get::<f32>("x"), c.get::<u32>("which"));
    let step = |v: f32, k: u32| match k % 4 {
        0 => v + v,
        1 => v * v,
        2 => -v,
        _ => v.clamp(-1.0, 1.0),
    };
    e.exact(
        "y",
        &x.iter()
            .zip(&which)
            .map(|(v, w)| (0..3).fold(*v, |v, k| step(v, w + k)))
            .collect::<Vec<f32>>(),
    );
    e.exact(
        "area",
        &x.iter()
            .zip(&which)
            .map(|(v, w)| if w % 2 == 1 { v * v + 4.0 } else { 3.0 - v })
            .collect::<Vec<f32>>(),
    );
}

fn collatz(c: &LaunchInputs, e: &mut Expected) {
    let steps = |v: &u32| {
        let mut v = u64::from(*v);
        let mut n = 0u32;
        while v != 1 {
            v = if v % 2 == 1 { 3 * v + 1 } else { v / 2 };
            n += 1;
        }
        n
    };
    e.exact(
        "steps",
        &c.get::<u32>("x").iter().map(steps).collect::<Vec<_>>(),
    );
}

fn tangled(c: &LaunchInputs, e: &mut Expected) {
    let one = |v: &u32| {
        let (v, mut r) = (*v, 1u32);
        for a in 0..v & 7 {
            for b in 0..20 {
                if v >> b & 3 == 3 {
                    break;
                }
                if v >> a & 7 == 5 {
                    r = r.wrapping_add(100);
                    break;
                }
                // Shifts of 32 and more do not happen: a < 8 and b < 20.
                match v >> (a + b) & 15 {
                    0 => r = r.wrapping_mul(3).wrapping_add(b),
                    1 => r = r.wrapping_add(b),
                    2 => {
                        r ^= 0x55;
                        continue;
                    }
                    7..=9 => r = r.rotate_left(3),
                    15 => return r,
                    _ => r = r.wrapping_add(v >> 16 & 0xff),
                }
                r = r.wrapping_add(a);
            }
            r = r.wrapping_mul(31).wrapping_add(a);
        }
        r
    };
    e.exact("y", &c.get::<u32>("x").iter().map(one).collect::<Vec<_>>());
}

fn early_exit(c: &LaunchInputs, e: &mut Expected) {
    let (x, mut y, n) = (c.get::<i32>("x"), c.get::<i32>("y"), c.size("n"));
    for (v, out) in x.iter().zip(&mut y).take(n) {
        *out = match v {
            0 => 1000,
            v if *v < 0 && v % 2 != 0 => -1,
            v => 360_360 / v.abs(),
        };
    }
    e.exact("y", &y);
}

fn barrier_loop(c: &LaunchInputs, e: &mut Expected) {
    let mut y = Vec::new();
    for n in c.get::<u32>("rounds") {
        let mut s: Vec<u32> = (0..64).collect();
        for r in 0..n as usize {
            let mut next: Vec<u32> = (0..64)
                .map(|t| s[(t + 1) % 64].wrapping_add(s[(t + r) % 64].wrapping_mul(3)))
                .collect();
            if r % 2 == 0 {
                let odd = next.iter().filter(|v| **v % 2 == 1).count() as u32;
                let any = u32::from(next.iter().any(|v| *v > 1000));
                let all = u32::from(next.iter().all(|v| *v != 7));
                next.iter_mut()
                    .for_each(|v| *v = v.wrapping_add(odd + any * 2 + all));
            }
            s = next;
        }
        y.extend(s);
    }
    e.exact("y", &y);
}

fn shuffles(c: &LaunchInputs, e: &mut Expected) {
    let (x, wide) = (c.get::<u32>("x"), c.get::<f64>("wide"));
    let (mut r, mut d, mut valid) = (Vec::new(), Vec::new(), Vec::new());
    for t in 0..64usize {
        let (base, lane) = (t / 32 * 32, t % 32);
        let v = |l: usize| x[base + l];
        let own = x[t];
        r.extend([
            v(31 - lane),
            v(lane / 8 * 8 + (own >> 5) as usize % 8),
            if lane >= 3 { v(lane - 3) } else { own },
            if lane % 16 >= 5 { v(lane - 5) } else { own },
            if lane + 7 < 32 { v(lane + 7) } else { own },
            if lane % 4 == 0 { v(lane + 3) } else { own },
            v(lane ^ 21),
            // Lanes of a later part may look back into an earlier one, not the other way.
            if (lane ^ 9) <= lane | 7 {
                v(lane ^ 9)
            } else {
                own
            },
            if lane % 2 == 1 {
                v(((lane + 6) % 32) | 1)
            } else {
                v((lane + 4) % 32)
            },
            v(lane ^ 1) & 0xffff,
        ]);
        d.push(if lane + 2 < 32 { wide[t + 2] } else { wide[t] });
        let exchanged = lane ^ 12;
        let reachable = exchanged <= lane | 7;
        valid.extend([
            u32::from(lane >= 4),
            u32::from(lane + 9 < 32),
            1 ^ v(lane & 0x18 | (lane + 3) & 7),
            u32::from(reachable) ^ if reachable { v(exchanged) } else { own },
        ]);
    }
    e.exact("r", &r);
    e.exact("d", &d);
    e.exact("valid", &valid);
}

fn mask(of: impl Iterator<Item = (usize, bool)>) -> u32 {
    of.fold(0, |m, (lane, bit)| m | u32::from(bit) << lane)
}

fn votes(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<u32> = c.get("x");
    let (mut all, mut ballots, mut matches, mut parts, mut lanes) =
        (vec![], vec![], vec![], vec![], vec![]);
    for warp in x.chunks(32) {
        let ballot = |f: &dyn Fn(usize, u32) -> bool| {
            mask(warp.iter().enumerate().map(|(l, v)| (l, f(l, *v))))
        };
        let alike = warp.iter().all(|v| *v > 2) || warp.iter().all(|v| *v <= 2);
        let odd = ballot(&|_, v| v % 2 == 1);
        for (lane, &v) in warp.iter().enumerate() {
            all.push(
                u32::from(warp.iter().all(|v| *v < 6))
                    | u32::from(warp.contains(&0)) << 1
                    | u32::from(alike) << 2,
            );
            ballots.push(odd);
            matches.push(ballot(&|_, o| o == v));
            matches.push(u32::MAX ^ 1 << 31 ^ if v % 2 == 1 { odd } else { !odd });
            parts.push(match lane {
                0..12 => ballot(&|l, o| l < 12 && o > 2),
                12..20 => u32::from(warp[12..20].contains(&3)) | 0x100,
                _ => ballot(&|l, o| l >= 20 && o == v),
            });
            let before = (0..lane).filter(|l| odd >> l & 1 == 1).count() as u32;
            lanes.push(before | 1 << 8 | (32 - lane as u32) << 16);
        }
    }
    e.exact("all", &all);
    e.exact("ballots", &ballots);
    e.exact("matches", &matches);
    e.exact("parts", &parts);
    e.exact("lanes", &lanes);
}

fn cg_tiles(c: &LaunchInputs, e: &mut Expected) {
    let x: Vec<i32> = c.get("x");
    let block = c.block[0] as usize;
    let group = |i: usize, size: usize| &x[i / size * size..][..size];
    let each = |f: &dyn Fn(usize) -> i32| (0..x.len()).map(f).collect::<Vec<i32>>();
    e.exact(
        "fours",
        &each(&|i| group(i, 4).iter().sum::<i32>() * 10 + (i % 4) as i32),
    );
    e.exact(
        "eights",
        &each(&|i| group(i, 8).iter().copied().max().unwrap_or(0) + (i % block / 8) as i32 * 1000),
    );
    e.exact(
        "scanned",
        &each(&|i| {
            group(i, 32)[..=i % 32].iter().sum::<i32>() - group(i, 8)[..i % 8].iter().sum::<i32>()
        }),
    );
    e.exact(
        "ranks",
        &each(&|i| {
            let positive = |v: &[i32]| v.iter().filter(|v| **v > 0).count() as i32;
            if x[i] > 0 {
                positive(&group(i, 32)[..i % 32]) + 100 * positive(group(i, 32))
            } else {
                -1
            }
        }),
    );
    e.exact(
        "labelled",
        &each(&|i| group(i, 32).iter().filter(|v| *v & 3 == x[i] & 3).sum()),
    );
}

fn printing(_: &LaunchInputs, e: &mut Expected) {
    e.exact("done", &[1u32, 1]);
}

fn life(c: &LaunchInputs, e: &mut Expected) {
    let mut now: Vec<u8> = c.get("start");
    let mut before = now.clone();
    for _ in 0..c.size("generations") {
        let next = (0..4096usize)
            .map(|i| {
                let (r, col) = (i / 64, i % 64);
                let neighbours: u8 = [63, 0, 1]
                    .iter()
                    .flat_map(|dr| [63, 0, 1].map(|dc| (dr, dc)))
                    .filter(|d| *d != (&0, 0))
                    .map(|(dr, dc)| now[(r + dr) % 64 * 64 + (col + dc) % 64])
                    .sum();
                u8::from(neighbours == 3 || neighbours == 2 && now[i] == 1)
            })
            .collect();
        before = std::mem::replace(&mut now, next);
    }
    let (even, odd) = if c.size("generations").is_multiple_of(2) {
        (&now, &before)
    } else {
        (&before, &now)
    };
    e.exact("a", even);
    e.exact("b", odd);
    e.exact(
        "packed",
        &now.chunks(32)
            .map(|w| mask(w.iter().enumerate().map(|(i, v)| (i, *v == 1))))
            .collect::<Vec<u32>>(),
    );
}

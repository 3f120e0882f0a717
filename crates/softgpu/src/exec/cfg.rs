//! Order of basic blocks, which is the scheduling order of diverged lanes.
//!
//! Lanes at the lowest block run first and the others wait, so a block must precede its successors,
//! and all of a loop must precede what follows the loop: then lanes that left early wait just
//! behind it, where the rest reconverge with them.

/// An order of the blocks reachable from block 0: reverse post-order in which, of a block's
/// successors, the ones that leave most loops come last.
pub(crate) fn order(successors: &[Vec<usize>]) -> Vec<usize> {
    let n = successors.len();
    let first = post_order(successors, |_, _| 0);
    let mut rpo_index = vec![usize::MAX; n];
    for (i, &b) in first.iter().rev().enumerate() {
        rpo_index[b] = i;
    }
    let mut predecessors = vec![Vec::new(); n];
    for &b in &first {
        for &s in &successors[b] {
            predecessors[s].push(b);
        }
    }
    let idom = dominators(&first, &rpo_index, &predecessors);
    let dominates = |a: usize, mut b: usize| {
        while rpo_index[b] > rpo_index[a] {
            b = idom[b];
        }
        a == b
    };
    // Natural loops: for each block, the headers of the loops that hold it.
    let mut loops: Vec<Vec<usize>> = vec![Vec::new(); n];
    for &t in &first {
        for &h in &successors[t] {
            if rpo_index[h] <= rpo_index[t] && dominates(h, t) {
                let mut work = vec![t];
                while let Some(b) = work.pop() {
                    if loops[b].contains(&h) {
                        continue;
                    }
                    loops[b].push(h);
                    if b != h {
                        work.extend(predecessors[b].iter().copied());
                    }
                }
            }
        }
    }
    let common = |a: usize, b: usize| loops[a].iter().filter(|h| loops[b].contains(h)).count();
    let mut out = post_order(successors, common);
    out.reverse();
    out
}

/// Post-order from block 0; successors of lowest `rank` are visited first.
fn post_order(successors: &[Vec<usize>], rank: impl Fn(usize, usize) -> usize) -> Vec<usize> {
    let sorted = |b: usize| {
        let mut s = successors[b].clone();
        s.sort_by_key(|&t| rank(b, t));
        s
    };
    let mut seen = vec![false; successors.len()];
    let mut out = Vec::new();
    let mut stack = vec![(0, sorted(0), 0)];
    seen[0] = true;
    while let Some((b, succ, at)) = stack.last_mut() {
        if let Some(&s) = succ.get(*at) {
            *at += 1;
            if !seen[s] {
                seen[s] = true;
                stack.push((s, sorted(s), 0));
            }
        } else {
            out.push(*b);
            stack.pop();
        }
    }
    out
}

fn dominators(post: &[usize], rpo_index: &[usize], predecessors: &[Vec<usize>]) -> Vec<usize> {
    let mut idom = vec![usize::MAX; rpo_index.len()];
    idom[0] = 0;
    let mut changed = true;
    while changed {
        changed = false;
        for &b in post.iter().rev().skip(1) {
            let mut new = usize::MAX;
            for &p in &predecessors[b] {
                if idom[p] == usize::MAX {
                    continue;
                }
                new = if new == usize::MAX {
                    p
                } else {
                    let (mut x, mut y) = (new, p);
                    while x != y {
                        while rpo_index[x] > rpo_index[y] {
                            x = idom[x];
                        }
                        while rpo_index[y] > rpo_index[x] {
                            y = idom[y];
                        }
                    }
                    x
                };
            }
            if new != usize::MAX && idom[b] != new {
                idom[b] = new;
                changed = true;
            }
        }
    }
    idom
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_is_whole_before_what_follows_it() {
        // 0 -> 1; 1 -> {2 body, 4 exit}; 2 -> {3, 4 break}; 3 -> 1; 4 end.
        let succ = vec![vec![1], vec![4, 2], vec![4, 3], vec![1], vec![]];
        let o = order(&succ);
        assert_eq!(o, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_join_comes_after_both_of_its_branches() {
        let succ = vec![vec![1, 2], vec![3], vec![3], vec![]];
        let o = order(&succ);
        assert_eq!((o[0], o[3]), (0, 3));
    }
}

//! The space of blocks beside a model, and threads that would see a page twice.
use std::collections::HashMap;
use std::sync::Mutex;

use crate::layout::PAGES;
use crate::space::*;

/// By block, the pages in use, and the last generation.
#[derive(Default)]
struct Model {
    used: HashMap<u32, u32>,
    generations: HashMap<u32, u64>,
}

impl Model {
    fn used_of(&self, block: u32) -> u32 {
        self.used.get(&block).copied().unwrap_or(0)
    }

    fn take(&mut self, run: PageRun, generation: u64) {
        let used = self.used.entry(run.block).or_default();
        assert_eq!(u64::from(*used) & run.mask(), 0, "{run:?} was in use");
        let last = self.generations.entry(run.block).or_default();
        match *used {
            0 => assert!(
                generation > *last,
                "{run:?} has the generation {generation} again"
            ),
            _ => assert_eq!(generation, *last, "{run:?}"),
        }
        *last = generation;
        *used |= run.mask() as u32;
    }

    fn give(&mut self, run: PageRun) {
        *self.used.entry(run.block).or_default() &= !(run.mask() as u32);
    }
}

fn random() -> fastrand::Rng {
    let random = fastrand::Rng::new();
    eprintln!("seed {}", random.get_seed());
    random
}

fn has_whole(space: &PageAllocator) -> bool {
    let taken = space.allocate(WHOLE);
    taken.is_some_and(|(run, _)| u32::from(run.order) == WHOLE)
}

#[test]
fn random_programs_allocate_free_pages_until_none_is_left() {
    let mut random = random();
    for _ in 0..200 {
        let blocks = random.u32(1..12);
        let space = PageAllocator::new(blocks + 4);
        space.add(0..blocks);
        let (mut model, mut held) = (Model::default(), Vec::new());
        let mut quarantined = Vec::new();
        for _ in 0..400 {
            let pages: u32 = held.iter().map(|run: &PageRun| run.pages()).sum();
            assert_eq!(space.used_pages(), u64::from(pages));
            quarantined.retain(|block| model.used_of(*block) != 0);
            let free = |block: &u32| model.used_of(*block).count_zeros();
            let away: u32 = quarantined.iter().map(free).sum();
            let all = blocks * PAGES as u32 - away;
            assert_eq!(space.pages(), u64::from(all));
            if random.u32(..50) == 0 {
                let block = random.u32(..blocks);
                space.quarantine(block);
                if model.used_of(block) != 0 && !quarantined.contains(&block) {
                    quarantined.push(block);
                }
                continue;
            }
            if random.u32(..100) < 60 {
                let order = random.u32(..=WHOLE);
                match space.allocate(order) {
                    Some((run, generation)) => {
                        assert!(
                            u32::from(run.page).is_multiple_of(run.pages()) && run.block < blocks
                        );
                        let is_whole = |block| model.used_of(block) == 0;
                        let is_short = u32::from(run.order) < order;
                        assert!(u32::from(run.order) <= order);
                        assert!(!quarantined.contains(&run.block), "{run:?}");
                        assert!(!is_short || !(0..blocks).any(is_whole), "{run:?}");
                        model.take(run, generation);
                        held.push(run);
                    }
                    None => assert_eq!(pages, all),
                }
            } else if !held.is_empty() {
                let run = held.swap_remove(random.usize(..held.len()));
                model.give(run);
                space.free(run);
            }
        }
        for run in held {
            space.free(run);
        }
        assert_eq!(space.used_pages(), 0);
        for _ in 0..blocks {
            assert!(has_whole(&space));
        }
        assert!(space.allocate(0).is_none());
    }
}

#[test]
fn retired_blocks_are_not_allocated_from_and_drain_as_they_are_freed() {
    let space = PageAllocator::new(8);
    space.add(0..4);
    assert_eq!(space.pages(), 4 * PAGES as u64);
    let held: Vec<PageRun> = (0..40).map(|_| space.allocate(1).unwrap().0).collect();
    space.retire(0..2);
    assert_eq!(space.pages(), 2 * PAGES as u64);
    let mut more = Vec::new();
    while let Some((run, _)) = space.allocate(0) {
        assert!(run.block >= 2, "{run:?}");
        more.push(run);
    }
    let left = |block| held.iter().any(|run| run.block == block);
    assert!((0..2).all(|block| space.is_drained(block) != left(block)));
    assert_eq!(
        space.count_undrained(0..4),
        2 + (0..2).filter(|it| left(*it)).count() as u32
    );
    for run in held.into_iter().chain(more) {
        space.free(run);
    }
    assert!(space.is_drained(0) && space.is_drained(1) && !space.is_drained(2));
    space.add(0..2);
    assert!((0..4).all(|_| has_whole(&space)));
    assert!(space.allocate(0).is_none());
}

#[test]
fn pages_of_lost_blocks_count_while_in_use_and_do_not_return() {
    let space = PageAllocator::new(8);
    space.add(0..4);
    let held: Vec<PageRun> = (0..3).map(|_| space.allocate(4).unwrap().0).collect();
    // One is in use, one free, and one not there yet.
    let lost = held[0].block;
    let free = (0..4).find(|block| space.used_of(*block) == 0).unwrap();
    for block in [lost, free, 5, lost] {
        space.mark_lost(block);
    }
    let used: u32 = space.used_of(lost).count_ones();
    let pages = 2 * PAGES as u64 + u64::from(used);
    assert_eq!(space.pages(), pages);
    assert_eq!(space.free_pages(), pages - space.used_pages());
    space.retire(0..4);
    space.add(0..4);
    space.add(4..6);
    assert_eq!(space.pages(), pages + PAGES as u64);
    let mut rest = 0;
    while let Some((run, _)) = space.allocate(0) {
        assert!(![lost, free, 5].contains(&run.block), "{run:?}");
        rest += 1;
    }
    assert_eq!(rest, 3 * PAGES as u64 - (3 * 16 - u64::from(used)));
    held.into_iter().for_each(|run| space.free(run));
    assert_eq!(space.pages(), 3 * PAGES as u64);
}

#[test]
fn threads_never_have_the_same_page() {
    let space = PageAllocator::new(16);
    space.add(0..16);
    let model = Mutex::new(Model::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (mut random, mut held) = (fastrand::Rng::new(), Vec::new());
                for _ in 0..20_000 {
                    if random.bool() {
                        let order = random.u32(..=WHOLE);
                        if let Some((run, generation)) = space.allocate(order) {
                            let mut model = model.lock().unwrap();
                            let used = model.used.entry(run.block).or_default();
                            assert_eq!(u64::from(*used) & run.mask(), 0, "{run:?}");
                            *used |= run.mask() as u32;
                            let last = model.generations.entry(run.block).or_default();
                            assert!(generation >= *last);
                            *last = generation;
                            drop(model);
                            held.push(run);
                        }
                    } else if !held.is_empty() {
                        let run = held.swap_remove(random.usize(..held.len()));
                        model.lock().unwrap().give(run);
                        space.free(run);
                    }
                }
                for run in held {
                    model.lock().unwrap().give(run);
                    space.free(run);
                }
            });
        }
    });
    assert_eq!(space.used_pages(), 0);
    assert!((0..16).all(|_| has_whole(&space)));
}

#[test]
fn a_failed_allocation_has_missed_no_free_run() {
    // Each of four threads has a quarter of the pages at most: there is always one.
    for (blocks, order) in [(1, 3), (4, WHOLE), (2, 4)] {
        let space = PageAllocator::new(blocks);
        space.add(0..blocks);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..100_000 {
                        let (mut held, mut left) = (Vec::new(), 1u32 << order);
                        while left > 0 {
                            let run = space.allocate(left.ilog2());
                            let run = run.unwrap_or_else(|| panic!("turn {turn} of {order}"));
                            left -= run.0.pages();
                            held.push(run.0);
                        }
                        held.into_iter().for_each(|run| space.free(run));
                    }
                });
            }
        });
    }
}

#[test]
fn blocks_that_come_again_with_pages_in_use_have_their_room_found() {
    let space = PageAllocator::new(2);
    space.add(0..2);
    let kept = space.allocate(0).unwrap().0;
    space.retire(0..2);
    assert!(space.allocate(0).is_none());
    space.add(0..2);
    let rest = std::iter::from_fn(|| space.allocate(0)).count();
    assert_eq!((rest, space.free_pages()), (2 * PAGES - 1, 0));
    space.free(kept);
    assert!(space.allocate(0).is_some());
}

#[test]
fn of_a_run_pages_are_kept_and_the_others_are_found_again() {
    let space = PageAllocator::new(1);
    space.add(0..1);
    let (one, _) = space.allocate(2).unwrap();
    let (other, _) = space.allocate(3).unwrap();
    assert_eq!((one.page, other.page), (0, 8));
    space.free_unkept(other, 0b1100_0010);
    assert_eq!((space.used_of(0), space.used_pages()), (0xC20F, 7));
    let (again, _) = space.allocate(1).unwrap();
    assert_eq!((again.page, again.order), (4, 1));
}

#[test]
fn small_files_that_went_leave_room_for_larger_runs() {
    let space = PageAllocator::new(64);
    space.add(0..64);
    let all: Vec<PageRun> = std::iter::from_fn(|| space.allocate(0))
        .map(|it| it.0)
        .collect();
    assert_eq!(all.len(), 64 * PAGES);
    for run in all.into_iter().filter(|run| run.page != 0) {
        space.free(run);
    }
    let mut counts = [0; WHOLE as usize];
    while let Some((run, _)) = space.allocate(3) {
        counts[usize::from(run.order)] += 1;
    }
    assert_eq!(counts, [64, 64, 64, 64 * 3, 0]);
}

//! Random programs over files, compared with a model after each step.

use super::*;

#[test]
fn random_operations_keep_written_bytes_and_expose_no_old_data() {
    run_programs(|random| {
        let blocks = random.u32(3..12);
        let (memory, store) = memory(blocks);
        let mut all: Vec<(File, Model)> = (0..4).map(|_| <_>::default()).collect();
        let longest = DATA_BYTES as u64 * random.u64(1..5);
        let fails = random.u32(..3) * 40;
        for step in 0..400 {
            let inode = random.usize(..all.len());
            let (file, model) = &mut all[inode];
            let at = near_of(random, longest, model.bytes.len());
            let len = match random.u32(..3) {
                0 => random.usize(1..100),
                1 => random.usize(1..3 * PAGE_BYTES),
                _ => random.usize(1..longest as usize),
            };
            memory.fails.store(fails, Relaxed);
            match random.u32(..11) {
                0..=4 => {
                    let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(1..))
                        .take(len)
                        .collect();
                    let answer = store.write_file(file, inode as u32 + 1, at, &bytes);
                    memory.fails.store(0, Relaxed);
                    let done = match answer {
                        Ok(done) => done,
                        Err(Errno::NOSPC) => {
                            assert!(
                                store.space().free_pages() < u64::from(blocks) * 32,
                                "{step}"
                            );
                            0
                        }
                        Err(error) => {
                            assert!(error == Errno::IO && fails > 0, "{error}");
                            0
                        }
                    };
                    assert!(done <= len);
                    let end = at as usize + done;
                    if done > 0 && model.bytes.len() < end {
                        model.bytes.resize(end, 0);
                    }
                    if done > 0 {
                        model.bytes[at as usize..end].copy_from_slice(&bytes[..done]);
                    }
                    // Bytes that were not reported as written may be, where there was data before.
                    if done < len && fails > 0 {
                        let rest = end..(at as usize + len).min(model.bytes.len());
                        if rest.start < rest.end {
                            let (now, from) = (read(&store, file, rest.start, rest.len()), done);
                            for (k, byte) in now.iter().enumerate() {
                                let place = rest.start + k;
                                let new = bytes[from + k];
                                assert!(*byte == model.bytes[place] || *byte == new, "{place}");
                                model.bytes[place] = *byte;
                            }
                        }
                    }
                }
                5 => {
                    let answer = store.truncate(file, at);
                    memory.fails.store(0, Relaxed);
                    match answer {
                        Ok(()) => model.bytes.resize(at as usize, 0),
                        Err(error) => {
                            assert!(error == Errno::IO && fails > 0, "{error}");
                            // Chunks behind `at` may be gone, and the size is unchanged.
                            refresh(&store, file, model, at as usize);
                        }
                    }
                }
                6 => {
                    let end = at + len as u64;
                    let answer = store.punch(file, at..end);
                    memory.fails.store(0, Relaxed);
                    match answer {
                        Ok(()) => {
                            let end = (end as usize).min(model.bytes.len());
                            if (at as usize) < end {
                                model.bytes[at as usize..end].fill(0);
                            }
                        }
                        Err(error) => {
                            assert!(error == Errno::IO && fails > 0, "{error}");
                            refresh(&store, file, model, at as usize);
                        }
                    }
                }
                7 => {
                    let keeps_size = random.bool();
                    let end = at + len as u64;
                    let answer = store.allocate(file, inode as u32 + 1, at..end, keeps_size);
                    memory.fails.store(0, Relaxed);
                    match answer {
                        Ok(()) if keeps_size || model.bytes.len() as u64 >= end => {}
                        Ok(()) => model.bytes.resize(end as usize, 0),
                        Err(error) => assert!(
                            error == Errno::NOSPC || error == Errno::IO && fails > 0,
                            "{error}"
                        ),
                    }
                }
                8 if random.bool() => {
                    memory.fails.store(0, Relaxed);
                    let other = random.usize(..all.len());
                    let from = near_of(random, longest, all[other].1.bytes.len());
                    let (from, to) = match random.bool() {
                        // At the same offset within a row in source and target.
                        true => (from / 512 * 512, at / 512 * 512),
                        false => (from, at),
                    };
                    let mut len = len as u64;
                    if other == inode {
                        len = len.min(from.abs_diff(to));
                    }
                    let bytes: Vec<u8> = {
                        let all = &all[other].1.bytes;
                        let from = all.len().min(from as usize);
                        all[from..all.len().min(from + len as usize)].to_vec()
                    };
                    memory.fails.store(fails, Relaxed);
                    let (target, source) = (&all[inode].0, &all[other].0);
                    let owner = inode as u32 + 1;
                    let answer = store.copy((source, from), (target, owner, to), len);
                    memory.fails.store(0, Relaxed);
                    let done = answer.unwrap_or_else(|error| {
                        assert!(error == Errno::NOSPC || error == Errno::IO && fails > 0);
                        0
                    }) as usize;
                    assert!(done <= bytes.len());
                    let (to, model) = (to as usize, &mut all[inode].1.bytes);
                    if done > 0 {
                        model.resize(model.len().max(to + done), 0);
                        model[to..to + done].copy_from_slice(&bytes[..done]);
                    }
                    // Bytes that were not reported as copied may be.
                    let rest = to + done..(to + bytes.len()).min(model.len());
                    let now = |file: &File, rest: &Range<usize>| {
                        read(&store, file, rest.start, rest.len())
                    };
                    if done < bytes.len() && fails > 0 && rest.start < rest.end {
                        let now = now(&all[inode].0, &rest);
                        let model = &mut all[inode].1.bytes;
                        for (place, byte) in rest.zip(now) {
                            assert!(byte == model[place] || byte == bytes[place - to], "{place}");
                            model[place] = byte;
                        }
                    }
                }
                9 if random.bool() => {
                    let end = at + len as u64;
                    let answer = store.zero(file, inode as u32 + 1, at..end, false);
                    memory.fails.store(0, Relaxed);
                    match answer {
                        Ok(()) => {
                            if model.bytes.len() < end as usize {
                                model.bytes.resize(end as usize, 0);
                            }
                            model.bytes[at as usize..end as usize].fill(0);
                            assert_eq!(file.seek(at, Seek::Data), Ok(at));
                        }
                        Err(error) => {
                            assert!(error == Errno::NOSPC || error == Errno::IO && fails > 0);
                            let size = file.size() as usize;
                            model.bytes.resize(size, 0);
                            refresh(&store, file, model, at as usize);
                        }
                    }
                }
                8 => {
                    memory.fails.store(0, Relaxed);
                    store.free(file);
                    *model = Model::default();
                }
                _ => {
                    memory.fails.store(0, Relaxed);
                    check(&store, file, model, at, len);
                }
            }
            memory.fails.store(0, Relaxed);
            let (file, model) = &all[inode];
            assert_eq!(file.size(), model.bytes.len() as u64, "step {step}");
            let used: u64 = all.iter().map(|it| it.0.pages()).sum();
            assert_eq!(store.space().used_pages(), used, "step {step}");
        }
        for (file, model) in &all {
            check(&store, file, model, 0, model.bytes.len() + 1);
            check_seeks(file, model);
            store.free(file);
        }
        assert_eq!(store.space().used_pages(), 0);
    });
}

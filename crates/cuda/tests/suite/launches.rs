//! Modules, functions and launches, and all kinds of wrong input.

use std::sync::{Arc, mpsc};

use bytemuck::{Pod, Zeroable};
use fercuda_cuda::{
    ByValue, Context, DeviceBuffer, Error, Image, KernelArg, Launch, Module, PinnedBuffer, Stream,
};

use crate::numbers::random;
use crate::support::{KERNELS, context, kernel, many_iterations, write_late};

#[test]
fn a_kernel_does_its_work_on_every_value_and_no_other() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let scale = kernel(&context, "scale");
    let values: Vec<f32> = random(1000).into_iter().map(|value| value as f32).collect();
    let mut buffer = DeviceBuffer::from_host(&values, &stream).unwrap();
    let launch = Launch::for_threads(900, 128);
    // SAFETY: `scale` touches the first 900 of 1000 values.
    unsafe { launch.run(&scale, &stream, (&mut buffer, 2.0f32, 900u32)) }.unwrap();
    let got = buffer.to_vec(&stream).unwrap();
    for (index, (got, value)) in got.iter().zip(&values).enumerate() {
        let expected = if index < 900 { value * 2.0 } else { *value };
        assert_eq!(got.to_bits(), expected.to_bits(), "{index}");
    }
}

#[test]
fn a_slice_is_passed_as_the_address_of_its_first_value() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let scale = kernel(&context, "scale");
    let mut buffer = DeviceBuffer::from_host(&[1.0f32; 8], &stream).unwrap();
    let part = buffer.slice_mut(4..6).unwrap();
    // SAFETY: `scale` touches the two values of the slice.
    unsafe { Launch::new(1, 32).run(&scale, &stream, (part, 3.0f32, 2u32)) }.unwrap();
    assert_eq!(
        buffer.to_vec(&stream).unwrap(),
        [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 1.0, 1.0]
    );
}

#[test]
fn arguments_known_at_run_time_are_checked_and_passed_alike() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let scale = kernel(&context, "scale");
    let buffer = DeviceBuffer::from_host(&[1.0f32; 4], &stream)
        .unwrap()
        .cast::<u8>()
        .unwrap();
    let arguments = [
        KernelArg::buffer(&buffer),
        KernelArg::number(5.0f32),
        KernelArg::number(4u32),
    ];
    // SAFETY: `scale` touches the four values.
    unsafe { Launch::new(1, 32).run(&scale, &stream, &arguments[..]) }.unwrap();
    let floats = buffer.cast::<f32>().unwrap();
    assert_eq!(floats.to_vec(&stream).unwrap(), [5.0; 4]);
    let wrong = [
        KernelArg::number(1u64),
        KernelArg::number(5.0f64),
        KernelArg::number(4u32),
    ];
    // SAFETY: refused before it is launched.
    let error = unsafe { Launch::new(1, 32).run(&scale, &stream, &wrong[..]) }.unwrap_err();
    assert!(matches!(error, Error::Arguments(_)), "{error}");
}

#[test]
fn wrong_arguments_are_refused_with_the_sizes_the_kernel_declares() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let scale = kernel(&context, "scale");
    assert_eq!(scale.parameter_bytes(), Some(&[8, 4, 4][..]));
    let buffer = DeviceBuffer::from_host(&[1.0f32; 4], &stream).unwrap();
    // SAFETY: refused before it is launched.
    let error = unsafe { Launch::new(1, 1).run(&scale, &stream, (&buffer, 1.0f32)) }.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("takes 3 arguments and 2 were passed"),
        "{error}"
    );
    // SAFETY: as above.
    let error =
        unsafe { Launch::new(1, 1).run(&scale, &stream, (&buffer, 1.0f64, 4u32)) }.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("argument 1 is 4 bytes wide in the kernel and 8 as passed"),
        "{error}"
    );
    // SAFETY: as above.
    let error = unsafe { Launch::new(1, 1).run(&kernel(&context, "count_up"), &stream, (1u32,)) }
        .unwrap_err();
    assert!(matches!(error, Error::Arguments(_)), "{error}");
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1.0; 4]);
}

#[test]
fn too_many_threads_are_refused_with_the_limit() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let count = kernel(&context, "count_up");
    for block in [(1025, 1, 1), (32, 32, 2), (u32::MAX, u32::MAX, u32::MAX)] {
        // SAFETY: refused before it is launched.
        let error = unsafe { Launch::new(1, block).run(&count, &stream, ()) }.unwrap_err();
        assert!(
            matches!(error, Error::LaunchLimit { limit: 1024, .. }),
            "{error}"
        );
    }
    // SAFETY: the driver refuses a grid without blocks.
    let error = unsafe { Launch::new(0, 1).run(&count, &stream, ()) }.unwrap_err();
    assert!(error.to_string().contains("grid (0, 1, 1)"), "{error}");
    assert!(!error.is_sticky());
}

#[test]
fn a_wrong_launch_is_refused_after_a_valid_one_of_the_same_kernel() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let increment = kernel(&context, "increment");
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let launch = Launch::new(1, 1);
    for _ in 0..2 {
        // SAFETY: `increment` touches the first value of `out`.
        unsafe { launch.run(&increment, &stream, (&mut out,)) }.unwrap();
    }
    let most = context.device().max_shared_bytes().unwrap();
    let refused = [
        // SAFETY: refused before it is launched.
        unsafe { launch.run(&increment, &stream, ()) },
        // SAFETY: as above.
        unsafe { launch.run(&increment, &stream, (1u32,)) },
        // SAFETY: as above.
        unsafe { launch.run(&increment, &stream, (&mut out, 1u8)) },
    ];
    for answer in refused {
        assert!(matches!(answer, Err(Error::Arguments(_))), "{answer:?}");
    }
    for wrong in [
        Launch::new(1, 1025),
        Launch::new(1, 1025).cluster(1),
        launch.shared_bytes(most + 1),
    ] {
        // SAFETY: as above.
        let answer = unsafe { wrong.run(&increment, &stream, (&mut out,)) };
        assert!(
            matches!(answer, Err(Error::LaunchLimit { .. })),
            "{answer:?}"
        );
    }
    // SAFETY: the driver refuses a grid without blocks.
    let error = unsafe { Launch::new(0, 1).run(&increment, &stream, (&mut out,)) }.unwrap_err();
    assert!(error.to_string().contains("grid (0, 1, 1)"), "{error}");
    for device in context.device().cuda().devices().unwrap() {
        let other = Context::primary(device).unwrap();
        let stream = Stream::new(&other).unwrap();
        if other != context {
            // SAFETY: refused before it is launched.
            let answer = unsafe { launch.run(&increment, &stream, (&mut out,)) };
            assert!(
                matches!(answer, Err(Error::OtherContext { .. })),
                "{answer:?}"
            );
        }
    }
    let (sender, receiver) = mpsc::channel();
    let (inside, address) = (stream.clone(), out.address());
    let function = increment.clone();
    stream
        .host_callback(move || {
            // SAFETY: refused before it is launched.
            let answer = unsafe { launch.run(&function, &inside, (address,)) };
            sender
                .send(matches!(answer, Err(Error::InCallback)))
                .unwrap();
        })
        .unwrap();
    stream.synchronize().unwrap();
    assert!(receiver.recv().unwrap(), "CUDA is refused in a callback");
    // SAFETY: `increment` touches the first value of `out`.
    unsafe { launch.run(&increment, &stream, (&mut out,)) }.unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [3]);
}

#[test]
fn memory_used_in_a_second_stream_by_a_repeated_launch_is_freed_after_it() {
    let context = context();
    let [first, second] = [0, 1].map(|_| Stream::new(&context).unwrap());
    let launch = Launch::new(1, 1);
    for second_begins in [false, true] {
        let late = kernel(&context, "late");
        let mut other = DeviceBuffer::<u32>::zeroed(&second, 1).unwrap();
        let mut buffer = DeviceBuffer::<u32>::alloc_ordered(&first, 1).unwrap();
        buffer.fill(0, &first).unwrap();
        let mut both = [(&first, &mut buffer), (&second, &mut other)];
        if second_begins {
            both.reverse();
        }
        for (stream, out) in both {
            // SAFETY: `late` touches the first value of `out`.
            unsafe { launch.run(&late, stream, (out, 1u32, 1u32)) }.unwrap();
        }
        first.synchronize().unwrap();
        // The kernel was in this stream before, and the buffer in the other.
        let turns = many_iterations(&context);
        // SAFETY: as above.
        unsafe { launch.run(&late, &second, (&mut buffer, 2u32, turns)) }.unwrap();
        drop(buffer);
        // The first stream gets the same memory again, after the work of the second.
        let mut next = DeviceBuffer::<u32>::alloc_ordered(&first, 1).unwrap();
        next.fill(7, &first).unwrap();
        second.synchronize().unwrap();
        assert_eq!(next.to_vec(&first).unwrap(), [7]);
    }
}

#[test]
fn a_buffer_alternates_between_more_streams_than_are_noted_as_recent() {
    let context = context();
    let increment = kernel(&context, "increment");
    let streams: Vec<Stream> = (0..6).map(|_| Stream::new(&context).unwrap()).collect();
    let mut out = DeviceBuffer::<u32>::zeroed(&streams[0], 1).unwrap();
    let mut before = streams[0].record().unwrap();
    // Rounds of two, of three, of all.
    for round in [2, 2, 3, 3, 6, 6, 2] {
        for stream in &streams[..round] {
            stream.wait_for(&before).unwrap();
            for _ in 0..2 {
                // SAFETY: `increment` touches the first value of `out`.
                unsafe { Launch::new(1, 1).run(&increment, stream, (&mut out,)) }.unwrap();
            }
            before = stream.record().unwrap();
        }
    }
    let last = &streams[5];
    last.wait_for(&before).unwrap();
    assert_eq!(out.to_vec(last).unwrap(), [2 * 24]);
}

#[test]
fn shared_memory_above_48_kib_is_allowed_and_above_the_limit_refused() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let shared = kernel(&context, "through_shared");
    let most = context.device().max_shared_bytes().unwrap();
    let mut out = DeviceBuffer::<u32>::alloc(&context, 1).unwrap();
    for bytes in [16, 48 << 10, (48 << 10) + 4, most] {
        let launch = Launch::new(1, 1).shared_bytes(bytes);
        // SAFETY: `through_shared` uses the last of `bytes` and the first of `out`.
        unsafe { launch.run(&shared, &stream, (&mut out, bytes)) }.unwrap();
        assert_eq!(out.to_vec(&stream).unwrap(), [bytes]);
    }
    let launch = Launch::new(1, 1).shared_bytes(most + 1);
    // SAFETY: refused before it is launched.
    let error = unsafe { launch.run(&shared, &stream, (&mut out, most + 1)) }.unwrap_err();
    assert!(matches!(error, Error::LaunchLimit { .. }), "{error}");
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Pair {
    first: u64,
    second: u64,
}

#[test]
fn another_handle_of_a_kernel_does_not_lower_its_shared_memory_limit() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let module = Module::load(&context, &Image::ptx(KERNELS)).unwrap();
    let (one, two) = (
        module.function("increment").unwrap(),
        module.function("increment").unwrap(),
    );
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    for (function, kib) in [(&one, 96), (&two, 64), (&one, 96)] {
        let launch = Launch::new(1, 1).shared_bytes(kib << 10);
        // SAFETY: `increment` touches the first value only.
        unsafe { launch.run(function, &stream, (&mut out,)) }.unwrap();
    }
    assert_eq!(out.to_vec(&stream).unwrap(), [3]);
}

#[test]
fn a_structure_is_passed_by_value() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let structure = kernel(&context, "structure");
    let mut out = DeviceBuffer::<u64>::alloc(&context, 1).unwrap();
    let pair = ByValue(Pair {
        first: 1 << 40,
        second: 2,
    });
    // SAFETY: `structure` writes the first value of `out`.
    unsafe { Launch::new(1, 1).run(&structure, &stream, (pair, &mut out)) }.unwrap();
    assert_eq!(out.to_vec(&stream).unwrap(), [(1 << 40) + 2]);
}

#[test]
fn launch_attributes_reach_the_driver() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let increment = kernel(&context, "increment");
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let one = Launch::new(1, 1);
    for launch in [one.cooperative(), one.cluster(1), one.overlaps_previous()] {
        // SAFETY: `increment` touches the first value of `out`.
        unsafe { launch.run(&increment, &stream, (&mut out,)) }.unwrap();
        stream.synchronize().unwrap();
    }
    assert_eq!(out.to_vec(&stream).unwrap(), [3]);
    // All blocks at once, and more of them than any device runs at once.
    let launch = Launch::new(1 << 20, 1024).cooperative();
    // SAFETY: the driver refuses it.
    let error = unsafe { launch.run(&increment, &stream, (&mut out,)) }.unwrap_err();
    assert!(!error.is_sticky(), "{error}");
    assert_eq!(out.to_vec(&stream).unwrap(), [3]);
}

#[test]
fn kernels_reach_pinned_memory() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let increment = kernel(&context, "increment");
    let pinned = PinnedBuffer::from_slice(&context, &[41u32]).unwrap();
    let address = pinned.device_address().unwrap();
    // SAFETY: `increment` accesses the one value, which the host does not until the stream is done.
    unsafe { Launch::new(1, 1).run(&increment, &stream, (address,)) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(*pinned, [42]);
}

#[test]
fn a_variable_of_a_module_is_a_buffer() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let module = Module::load(&context, &Image::ptx(KERNELS)).unwrap();
    let mut counters = module.global::<u32>("counters").unwrap();
    assert_eq!(counters.to_vec(&stream).unwrap(), [1, 2, 3, 4]);
    counters.copy_from_host(&[5, 6, 7, 8], &stream).unwrap();
    let count = module.function("count_up").unwrap();
    drop(module);
    // SAFETY: `count_up` touches the four counters.
    unsafe { Launch::new(1, 4).run(&count, &stream, ()) }.unwrap();
    drop(count);
    assert_eq!(counters.to_vec(&stream).unwrap(), [15, 16, 17, 18]);
}

#[test]
fn a_variable_of_another_size_or_name_is_an_error() {
    let context = context();
    let module = Module::load(&context, &Image::ptx(KERNELS)).unwrap();
    assert!(matches!(
        module.global::<[u64; 3]>("counters"),
        Err(Error::Value { .. })
    ));
    let error = module.global::<u32>("counter").unwrap_err();
    assert_eq!(
        error.code().and_then(|code| code.name()),
        Some("CUDA_ERROR_NOT_FOUND")
    );
    assert!(error.to_string().contains("`counter`"), "{error}");
}

#[test]
fn functions_report_their_attributes() {
    let context = context();
    let shared = kernel(&context, "through_shared");
    assert_eq!(shared.name(), "through_shared");
    assert_eq!(shared.max_threads_per_block(), 1024);
    assert_eq!(shared.static_shared_bytes(), 0);
    assert!(shared.registers().unwrap() > 0);
    assert_eq!(shared.local_bytes().unwrap(), 0);
    assert!(shared.blocks_per_multiprocessor(128, 0).unwrap() >= 1);
}

#[test]
fn a_missing_kernel_is_named_in_the_error() {
    let context = context();
    let module = Module::load(&context, &Image::ptx(KERNELS)).unwrap();
    let error = module.function("scales").unwrap_err();
    assert_eq!(
        error.code().and_then(|code| code.name()),
        Some("CUDA_ERROR_NOT_FOUND")
    );
    assert!(
        error.to_string().contains("find the kernel `scales`"),
        "{error}"
    );
    assert!(matches!(module.function("a\0b"), Err(Error::Value { .. })));
}

#[test]
fn invalid_ptx_is_refused_with_the_compilers_log_and_the_context_stays_usable() {
    let context = context();
    let broken = KERNELS.replace("mul.f32 %f3", "mull.f32 %f3");
    let error = Module::load(&context, &Image::ptx(broken)).unwrap_err();
    let Error::Load(refused) = &error else {
        panic!("{error}")
    };
    let line = 1 + KERNELS
        .lines()
        .position(|line| line.contains("mul.f32 %f3"))
        .unwrap();
    assert!(refused.log.contains(&line.to_string()), "{error}");
    assert!(
        error
            .to_string()
            .starts_with("cannot load the module (PTX, "),
        "{error}"
    );
    assert!(!error.is_sticky());
    let stream = Stream::new(&context).unwrap();
    assert_eq!(
        DeviceBuffer::from_host(&[1u32], &stream)
            .unwrap()
            .to_vec(&stream)
            .unwrap(),
        [1]
    );
}

#[test]
fn corrupt_images_are_refused() {
    for bytes in [
        &b"\x7fELF"[..],
        b"\x7fELF\x02\x01\x01",
        b"\x50\xed\x55\xba\x01\x00\x10\x00",
    ] {
        // SAFETY: no compiler made these; they must be refused before any driver reads them.
        let error = unsafe { Image::binary(bytes) }.unwrap_err();
        assert!(error.to_string().contains("corrupt"), "{error}");
    }
}

#[test]
fn a_module_dropped_while_its_kernel_runs_is_unloaded_after_it() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    // The module is dropped inside.
    write_late(&mut out, 12, &stream);
    assert_eq!(out.to_vec(&stream).unwrap(), [12]);
}

#[test]
fn a_launch_binds_its_context_in_a_thread_that_has_none_or_another() {
    let context = context();
    let stream = Stream::new(&context).unwrap();
    let increment = kernel(&context, "increment");
    let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
    let devices = context.device().cuda().devices().unwrap();
    let other = Context::primary(devices[devices.len() - 1]).unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| {
            // SAFETY: `increment` touches the first value of `out`.
            unsafe { Launch::new(1, 1).run(&increment, &stream, (&mut out,)) }.unwrap();
            other.synchronize().unwrap();
            // SAFETY: as above.
            unsafe { Launch::new(1, 1).run(&increment, &stream, (&mut out,)) }.unwrap();
        });
    });
    assert_eq!(out.to_vec(&stream).unwrap(), [2]);
}

#[test]
fn four_threads_launch_a_thousand_times_each() {
    let context = context();
    let increment = Arc::new(kernel(&context, "increment"));
    std::thread::scope(|threads| {
        for _ in 0..4 {
            let (context, increment) = (&context, increment.clone());
            threads.spawn(move || {
                let stream = Stream::new(context).unwrap();
                let mut out = DeviceBuffer::<u32>::zeroed(&stream, 1).unwrap();
                let launch = Launch::new(1, 1);
                for _ in 0..1000 {
                    // SAFETY: `increment` touches the first value of `out`.
                    unsafe { launch.run(&increment, &stream, (&mut out,)) }.unwrap();
                }
                assert_eq!(out.to_vec(&stream).unwrap(), [1000]);
            });
        }
    });
}

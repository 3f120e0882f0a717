//! Buffers of every regime, views, copies and launches, beside a naive model.

use super::*;

#[test]
fn values_come_back_from_every_regime() {
    let bench = Bench::new();
    let mut random = random();
    let session = bench.session("values");
    for round in 0..40 {
        let regime = REGIMES[round % REGIMES.len()];
        let layout = layout(&mut random);
        let id = session.alloc(layout, regime).unwrap();
        assert_eq!(session.regime(id).unwrap(), regime);
        assert_eq!(session.layout(id).unwrap(), layout);
        let bytes = bytes_for(&layout, &mut random);
        session.upload_bytes(id, &bytes).unwrap();
        assert_eq!(session.download_bytes(id).unwrap(), bytes, "{regime}");
        if random.bool() {
            session.free(id).unwrap();
        }
    }
    let id = session.buffer(&[2, 2], &[1.5f32, -2.0, 3.0, 0.25]).unwrap();
    assert_eq!(session.download::<f32>(id).unwrap(), [1.5, -2.0, 3.0, 0.25]);
    session.close().unwrap();
    assert_eq!(session.held_bytes(), 0);
}

#[test]
fn kernels_are_launched_with_handles() {
    let bench = Bench::new();
    let session = bench.session("kernels");
    let module = Module::load(&bench.runtime.context(), &Image::ptx(SCALE)).unwrap();
    let scale = module.function("scale").unwrap();
    let id = session.buffer(&[8], &[1.0f32; 8]).unwrap();
    let half = session.view(id, |it| Ok(it.slice(0, 4..8, 1)?)).unwrap();
    let launch = |arguments: &[LaunchArgument]| {
        // SAFETY: the kernel changes `count` values, which exist.
        unsafe { session.launch(&scale, Launch::new(1, 32), arguments) }
    };
    launch(&[half.into(), 3.0f32.into(), 4u32.into()]).unwrap();
    let scaled = [1.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0];
    assert_eq!(session.download::<f32>(id).unwrap(), scaled);
    let unfit = launch(&[half.into(), 3.0f64.into(), 4u32.into()]).unwrap_err();
    assert!(matches!(unfit, Error::Cuda(_)), "{unfit}");
    let memory = session.memory(half).unwrap();
    session.free(half).unwrap();
    let stale = launch(&[half.into(), 3.0f32.into(), 4u32.into()]).unwrap_err();
    assert!(matches!(stale, Error::Stale(_)), "{stale}");
    session.free(id).unwrap();
    // It lives as long as it has an owner.
    let values = memory.to_vec(session.stream()).unwrap();
    assert_eq!(values[..4], 3.0f32.to_le_bytes());
    drop(memory);
    drop((scale, module));
    session.close().unwrap();
}

//! The builder's elementary functions against f64, over all exponents.
#![expect(
    clippy::type_complexity,
    reason = "a table of functions reads best in one place"
)]

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Image, Launch, Module, Stream};
use fercuda_ptx::build::{Arch, KernelBuilder, ModuleBuilder, Reg};

type Built = for<'k> fn(Reg<'k, f32>) -> Reg<'k, f32>;

/// The error function, by its Taylor series or its continued fraction.
fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let a = x.abs();
    if a < 3.0 {
        let (mut sum, mut term) = (0.0f64, a);
        for n in 0..200 {
            sum += term / f64::from(2 * n + 1);
            term *= -a * a / f64::from(n + 1);
        }
        return (sum * 2.0 / std::f64::consts::PI.sqrt()).copysign(x);
    }
    if a > 6.0 {
        return 1f64.copysign(x);
    }
    let fraction = (1..200).rev().fold(a, |f, n| a + f64::from(n) / 2.0 / f);
    (1.0 - (-a * a).exp() / fraction / std::f64::consts::PI.sqrt()).copysign(x)
}

/// Distance in units of the last place of the wanted value.
fn ulps(got: f32, wanted: f64) -> f64 {
    let rounded = wanted as f32;
    if got.is_nan() || wanted.is_nan() {
        return if got.is_nan() && wanted.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    if rounded.is_infinite() || got.is_infinite() {
        return if got == rounded { 0.0 } else { f64::INFINITY };
    }
    let exponent = (rounded.abs().max(f32::MIN_POSITIVE).to_bits() >> 23) as i32 - 127 - 23;
    (f64::from(got) - wanted).abs() / 2f64.powi(exponent)
}

#[test]
fn elementary_functions_keep_their_bounds_over_all_exponents() {
    let functions: [(&str, Built, fn(f64) -> f64, f64); 5] = [
        ("exp", |x| x.exp(), f64::exp, 4.0),
        ("ln", |x| x.ln(), f64::ln, 2.0),
        ("tanh", |x| x.tanh(), f64::tanh, 3.0),
        (
            "sigmoid",
            |x| x.sigmoid(),
            |x| 1.0 / (1.0 + (-x).exp()),
            5.0,
        ),
        ("erf", |x| x.erf(), erf, 4.0),
    ];
    let mut module = ModuleBuilder::new(Arch::SM_80);
    for (name, function, ..) in functions {
        module.kernel(&format!("map_{name}"), |k| map(k, function));
    }
    let ptx = fercuda_ptx::print(&module.finish().unwrap());

    let seed = fercuda_trials::seed() as u32;
    // Every exponent and sign with many fractions: odd steps of about 2^14 through all bits.
    let step = 0x4001 + 2 * (seed % 0x1000);
    let mut x: Vec<f32> = (0..u32::MAX / step)
        .map(|i| f32::from_bits(seed.wrapping_add(i.wrapping_mul(step))))
        .collect();
    x.extend([
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::MIN_POSITIVE,
        1e-45,
    ]);
    // Where most of the work is.
    x.extend((0..50_000).map(|i| i as f32 * 0.002 - 50.0));

    let device = Cuda::from_env()
        .and_then(|c| c.device(0))
        .expect("a device");
    let context = Context::primary(device).unwrap();
    let stream = Stream::new(&context).unwrap();
    let module = Module::load(&context, &Image::ptx(&ptx)).unwrap();
    let source = DeviceBuffer::from_host(&x, &stream).unwrap();
    for (name, _, reference, bound) in functions {
        let function = module.function(&format!("map_{name}")).unwrap();
        let mut out = DeviceBuffer::<f32>::zeroed(&stream, x.len()).unwrap();
        let n = x.len() as u32;
        // SAFETY: both buffers have n elements, and `map` stays below n.
        unsafe { Launch::for_threads(n, 256).run(&function, &stream, (&source, &mut out, n)) }
            .unwrap();
        let got = out.to_vec(&stream).unwrap();
        let worst = x
            .iter()
            .zip(&got)
            .map(|(&x, &y)| (ulps(y, reference(f64::from(x))), x, y))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap();
        println!(
            "{name}: worst {:.2} ulp, at {:e}: {:e}",
            worst.0, worst.1, worst.2
        );
        let wanted = reference(f64::from(worst.1));
        assert!(
            worst.0 <= bound,
            "{name}({:e}) is {:e}, should be {wanted:e}: {} ulp",
            worst.1,
            worst.2,
            worst.0
        );
    }
}

fn map(k: &KernelBuilder, function: Built) {
    let x = k.param_ptr::<f32>("x");
    let out = k.param_ptr::<f32>("out");
    let n = k.param::<u32>("n");
    let i = k.global_id();
    k.if_(i.lt(n), || out.index(i).store(function(x.index(i).load())));
}

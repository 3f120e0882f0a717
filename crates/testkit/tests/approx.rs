//! Every `.approx` instruction gives the results of an H200, for all operands.
//!
//! In CI a few blocks of 2^16 operands of each form, chosen afresh; with `FERCUDA_BUDGET=soak` all
//! of 2^32 of each. `FERCUDA_APPROX_RECORD=FILE` writes the sums of the device under test in the
//! layout of `isa/approx.bin`: run on a GPU, it regenerates that file.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Function, Image, Launch, Module, Stream};
use fercuda_testkit::approx::{self, BLOCKS, FORMS, GROUPS, Operands, THREADS, sampled_block};
use fercuda_trials::{Budget, Work};

/// A step is a block, or a group with a budget of steps.
const WORK: Work = Work {
    name: "approximations",
    least: 2 * FORMS.len() as u64,
    ci_seconds: 5,
    soak: FORMS.len() as u64 * GROUPS as u64,
};

struct Bench {
    stream: Stream,
    kernels: Vec<Function>,
}

impl Bench {
    fn new() -> Bench {
        let context = Context::primary(Cuda::from_env().unwrap().device(0).unwrap()).unwrap();
        let kernel = |form: &approx::ApproxForm| {
            let module = Module::load(&context, &Image::ptx(form.module())).unwrap();
            module.function("sums").unwrap()
        };
        Bench {
            kernels: FORMS.iter().map(kernel).collect(),
            stream: Stream::new(&context).unwrap(),
        }
    }

    /// The sum over `blocks` blocks of a form.
    fn sum(&self, form: usize, first: u32, blocks: u32) -> u64 {
        let mut out = DeviceBuffer::<u64>::zeroed(&self.stream, blocks as usize).unwrap();
        // SAFETY: each block of the grid adds to its own element.
        unsafe {
            Launch::new(blocks, THREADS)
                .run(&self.kernels[form], &self.stream, (&mut out, first))
                .unwrap();
        }
        let sums = out.to_vec(&self.stream).unwrap();
        sums.into_iter().fold(0, u64::wrapping_add)
    }

    /// The sum over a group.
    fn group(&self, form: usize, group: u32) -> u64 {
        self.sum(form, group * BLOCKS, BLOCKS)
    }

    /// The sum over the block of a group of which there is a record.
    fn block(&self, form: usize, group: u32) -> u64 {
        self.sum(form, sampled_block(group), 1)
    }

    /// All sums of the device.
    fn record(&self) -> Vec<u8> {
        let mut sums = Vec::new();
        for form in 0..FORMS.len() {
            for group in 0..GROUPS {
                sums.extend(self.group(form, group).to_le_bytes());
                sums.extend(self.block(form, group).to_le_bytes());
            }
        }
        sums
    }
}

#[test]
fn results_add_up_to_what_the_h200_summed() {
    let bench = Bench::new();
    if let Some(file) = std::env::var_os("FERCUDA_APPROX_RECORD") {
        std::fs::write(file, bench.record()).unwrap();
    }
    let mut random = fercuda_trials::rng();
    let budget = Budget::begin(WORK);
    let is_complete = budget.planned_steps() > WORK.least;
    let mut groups: Vec<u32> = (0..GROUPS).collect();
    random.shuffle(&mut groups);
    let all = groups
        .iter()
        .flat_map(|group| (0..FORMS.len()).map(|form| (form, *group)));
    let (mut done, mut wrong) = (0, Vec::new());
    for (form, group) in all {
        if !budget.has_left(done) {
            break;
        }
        done += 1;
        let [whole, sampled] = approx::recorded(form, group);
        // A block of pairs has all lower halves in it, and shares its upper half.
        let by_block = !is_complete || FORMS[form].operands == Operands::Halves;
        let (place, got, expected) = match by_block {
            true => ("block", bench.block(form, group), sampled),
            false => ("group", bench.group(form, group), whole),
        };
        if got != expected {
            let first = if by_block {
                sampled_block(group) << 16
            } else {
                group << 24
            };
            wrong.push(format!(
                "{}: the {place} of {first:#010x} adds up to {got:#018x}, not {expected:#018x}",
                FORMS[form].opcode
            ));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {done} sums differ:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
}

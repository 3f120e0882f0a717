//! Every instruction form of `isa/table.txt` computes what an H200 computed.
//!
//! `FERCUDA_ISA_RECORD=FILE` also writes the results of the device under test in the layout of
//! `isa/h200.bin`: run on a GPU, it regenerates that file.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Image, Launch, Module, Stream};
use fercuda_testkit::isa;

/// Rows a module: loading one module of all would hide which row does not load.
const BATCH: usize = 64;

/// A context with a module of some rows in it. A row that faults makes it unusable, and the next
/// row needs a new one.
struct Bench {
    stream: Stream,
    module: Module,
    context: Context,
}

impl Bench {
    fn new(rows: &[isa::InstructionForm], first: usize) -> Bench {
        let context = Context::primary(Cuda::from_env().unwrap().device(0).unwrap()).unwrap();
        let module = Module::load(&context, &Image::ptx(isa::module(rows, first))).unwrap();
        Bench {
            stream: Stream::new(&context).unwrap(),
            module,
            context,
        }
    }

    fn run(&self, row: &isa::InstructionForm, kernel: &str) -> fercuda_cuda::Result<Vec<u64>> {
        let function = self.module.function(kernel)?;
        let inputs = DeviceBuffer::from_host(&row.inputs(), &self.stream)?;
        let mut out = DeviceBuffer::<u64>::alloc(&self.context, isa::THREADS * row.results())?;
        let mut scratch = DeviceBuffer::<u8>::alloc(&self.context, isa::SCRATCH_BYTES)?;
        // What no thread writes must not look right.
        out.fill_bytes(0xa5, &self.stream)?;
        // SAFETY: the row's kernel indexes its three buffers by thread, and they have a slot for
        // each.
        unsafe {
            Launch::new(isa::BLOCKS, isa::THREADS as u32 / isa::BLOCKS).run(
                &function,
                &self.stream,
                (&inputs, &mut out, &mut scratch),
            )?;
        }
        out.to_vec(&self.stream)
    }
}

#[test]
fn every_instruction_form_computes_what_the_h200_computed() {
    let rows = isa::rows().unwrap();
    let (mut failures, mut recorded, mut at) = (Vec::new(), Vec::new(), 0);
    for (batch, rows) in rows.chunks(BATCH).enumerate() {
        let first = batch * BATCH;
        let mut bench = Bench::new(rows, first);
        for (i, row) in rows.iter().enumerate() {
            let bytes = row.recorded_bytes();
            match bench.run(row, &format!("k{}", first + i)) {
                Ok(stored) => {
                    failures.extend(row.mismatches(&stored, &isa::RECORDED[at..at + bytes]));
                    recorded.extend(row.record(&stored));
                }
                Err(e) => {
                    failures.push(format!("{}: {e}", row.name));
                    recorded.resize(at + bytes, 0);
                    drop(bench);
                    bench = Bench::new(rows, first);
                }
            }
            at += bytes;
        }
    }
    assert_eq!(at, isa::RECORDED.len());
    if let Some(file) = std::env::var_os("FERCUDA_ISA_RECORD") {
        std::fs::write(file, recorded).unwrap();
    }
    assert!(
        failures.is_empty(),
        "{} mismatches:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

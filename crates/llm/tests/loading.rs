//! Host memory while a model is loaded, by an allocator that counts: files are mapped, and no copy
//! of them is made.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::BufWriter;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use fercuda_llm::{Engine, EngineConfig, ModelShape};
use fercuda_modelfile::{ModelFile, TensorType};
use fercuda_runtime::{Runtime, RuntimeConfig};
use fercuda_tensor::Dtype;

static HELD: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

struct HeapMeter;

fn add(bytes: isize) {
    let held = HELD.fetch_add(bytes, Relaxed) + bytes;
    MOST.fetch_max(held, Relaxed);
}

// SAFETY: forwards to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for HeapMeter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static METER: HeapMeter = HeapMeter;

#[test]
fn loading_holds_a_small_part_of_the_file_in_host_memory() {
    let shape = ModelShape {
        name: "loaded",
        architecture: "llama",
        layers: 4,
        hidden: 256,
        heads: 4,
        shared_heads: 2,
        head_length: 64,
        feed_forward: 1024,
        vocabulary: 32_768,
        experts: None,
        states: None,
        window: 0,
        context: 64,
        is_tied: false,
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loaded.gguf");
    let file = BufWriter::new(File::create(&path).unwrap());
    let kind = TensorType::Scalar(Dtype::F32);
    shape.write(file, kind, 1, |_, _| {}).unwrap();
    let size = std::fs::metadata(&path).unwrap().len();
    let runtime = Runtime::open(RuntimeConfig::default()).unwrap();
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    let model = ModelFile::open(&path).unwrap();
    let mut seen = 0;
    let engine = Engine::load(&runtime, &model, &EngineConfig::default(), |done, _| {
        seen = done;
    });
    let engine = engine.unwrap();
    let most = (MOST.load(Relaxed) - before) as u64;
    // The tables of 32 MiB go in pieces of 8, of which the software device's driver holds copies as
    // any driver does; the vocabulary's texts are not read here.
    assert!(most < size / 4, "{most} of a file of {size} bytes");
    assert!(seen > size / 2 && engine.session().held_bytes() >= seen);
    println!("{most} bytes of {size}");
}

//! A kernel that adds two vectors, written in Rust and printed as PTX.
//!
//! `cargo run -p fercuda-ptx --example kernel`
//!
//! Prints the listing, which NVIDIA's assembler accepts, and that it parses back to the same module
//! of so many instructions. No GPU, driver or compiler is needed.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::error::Error;

use fercuda_ptx::build::{Arch, ModuleBuilder};
use fercuda_ptx::{parse, print};

fn main() -> Result<(), Box<dyn Error>> {
    let mut builder = ModuleBuilder::new(Arch::SM_80);
    builder.kernel("vector_add", |k| {
        // Parameters are in the order of the arguments. Pointers know their element type.
        let a = k.param_ptr::<f32>("a");
        let b = k.param_ptr::<f32>("b");
        let out = k.param_ptr::<f32>("out");
        let len = k.param::<u32>("len");
        // One thread for each element. Each operation is emitted when it is called.
        let i = k.global_id();
        k.if_(i.lt(len).named("in_range"), || {
            let sum = a.index(i).load() + b.index(i).load();
            out.index(i).store(sum.named("sum"));
        });
    });
    // A mistake that the types do not exclude is an error here.
    let module = builder.finish()?;
    let listing = print(&module);
    println!("{listing}");

    let parsed = parse(&listing)?;
    let count: usize = parsed.functions().map(|it| it.instructions().count()).sum();
    assert!(parsed == module, "the listing parses to another module");
    println!("// It parses back to an equal module of {count} instructions.");
    Ok(())
}

//! Kernel builder in Rust: typed registers, structured control flow, readable PTX.
//!
//! A [`ModuleBuilder`] holds kernels; each is written by a closure over a [`KernelBuilder`].
//! Registers are typed by Rust's own number types, so that a mistaken operand does not
//! compile; what types cannot exclude (a register used outside of the branch that sets it,
//! two parameters of one name, too much shared memory) is the `Err` of
//! [`ModuleBuilder::finish`]. Nothing here panics.
//!
//! ```
//! use fercuda_ptx::build::{Arch, ModuleBuilder};
//!
//! let mut module = ModuleBuilder::new(Arch::SM_80);
//! module.kernel("scale", |k| {
//!     let x = k.param_ptr::<f32>("x");
//!     let factor = k.param::<f32>("factor");
//!     let n = k.param::<u32>("n");
//!     let i = k.global_id();
//!     let in_range = i.lt(n).named("in_range");
//!     k.if_(in_range, || {
//!         let xi = x.index(i);
//!         xi.store(xi.load() * factor);
//!     });
//! });
//! let module = module.finish()?;
//! assert_eq!(module.items.len(), 1);
//! # Ok::<(), fercuda_ptx::build::BuildError>(())
//! ```
//!
//! Adding an integer to a float does not compile:
//! ```compile_fail,E0277
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     let a = k.param::<f32>("a");
//!     let n = k.param::<u32>("n");
//!     let sum = a + n;
//! });
//! ```
//! Nor does storing a float through a pointer to integers:
//! ```compile_fail,E0277
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     let p = k.param_ptr::<u32>("p");
//!     p.store(1.0f32);
//! });
//! ```
//! Nor a number as a condition:
//! ```compile_fail,E0308
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     let n = k.param::<u32>("n");
//!     k.if_(n, || k.ret());
//! });
//! ```
//! Nor writing constant memory, nor an atomic addition to bytes:
//! ```compile_fail,E0599
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     k.constant::<f32>("table", &[1.0]).store(2.0f32);
//! });
//! ```
//! ```compile_fail,E0599
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     k.param_ptr::<u8>("p").atomic_add(1u32);
//! });
//! ```
//! Nor taking a register out of its kernel:
//! ```compile_fail
//! # use fercuda_ptx::build::{Arch, ModuleBuilder};
//! let mut kept = None;
//! ModuleBuilder::new(Arch::SM_80).kernel("k", |k| {
//!     kept = Some(k.param::<f32>("a"));
//! });
//! ```
//!
//! Elsewhere: the tree ([`crate::ast`]), its text ([`crate::print()`]).

/// The recipe's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/recipes/build-a-kernel.md")]
struct Recipe;

mod declare;
mod error;
mod finish;
mod flow;
mod kernel;
mod math;
mod operators;
mod ptr;
mod reg;
mod state;
mod tensor;
mod types;
mod warp;

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ast::{Linkage, PtxModule};

use state::{KernelDraft, is_identifier};

pub use declare::STATIC_SHARED_LIMIT;
pub use error::{Arch, BuildError};
pub use flow::Loop;
pub use kernel::KernelBuilder;
pub use operators::{Divide, Signed};
pub use ptr::{
    Atomic, Cache, Const, Generic, Global, Index, Local, Ptr, PtrVar, Shared, Space, Writable,
};
pub use reg::{Arg, Pred, Reg, RegVar, Src};
pub use types::{
    AtomicAdd, AtomicMinMax, AtomicSwap, Bf16, Bf16x2, BitOps, Bits32, ConstElement, Convert, F16,
    F16x2, Float, Int, MemoryElement, Num, Ordered, Scalar, Tf32, Type,
};
pub use warp::FULL_MASK;

/// A module being written.
pub struct ModuleBuilder {
    version: (u32, u32),
    arch: Arch,
    kernels: Vec<KernelDraft>,
    error: Option<BuildError>,
}

impl ModuleBuilder {
    /// An empty module for `arch`, in PTX 8.0, which drivers of CUDA 12.0 and later read.
    #[must_use]
    pub fn new(arch: Arch) -> Self {
        ModuleBuilder {
            version: (8, 0),
            arch,
            kernels: Vec::new(),
            error: None,
        }
    }

    /// Sets `.version`.
    #[must_use]
    pub fn version(mut self, major: u32, minor: u32) -> Self {
        self.version = (major, minor);
        self
    }

    /// Writes the kernel `name`. The body runs at once; it ends with an implied return.
    pub fn kernel(
        &mut self,
        name: &str,
        body: impl for<'k> FnOnce(&'k KernelBuilder),
    ) -> &mut Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let kernel = KernelBuilder::new(name, self.arch, NEXT.fetch_add(1, Ordering::Relaxed));
        if !is_identifier(name) {
            kernel.fail(|k| BuildError::BadName {
                kernel: k.to_owned(),
                name: name.to_owned(),
            });
        } else if self.kernels.iter().any(|k| k.entry == name) {
            kernel.fail(|k| BuildError::DuplicateName {
                kernel: k.to_owned(),
                name: name.to_owned(),
            });
        }
        body(&kernel);
        let mut state = kernel.state.into_inner();
        self.share_globals(&mut state);
        if self.error.is_none() {
            self.error = state.error.take();
        }
        self.kernels.push(state);
        self
    }

    /// Leaves out of `state` the dynamic shared memory that an earlier kernel declared alike;
    /// other names may be given once.
    fn share_globals(&self, state: &mut KernelDraft) {
        let mut globals = std::mem::take(&mut state.globals);
        globals.retain(|global| {
            let name = state.text(global.name);
            let earlier = self
                .kernels
                .iter()
                .find_map(|k| k.globals.iter().find(|g| k.text(g.name) == name));
            let alike = earlier.is_some_and(|e| {
                (e.linkage, e.ty, e.align) == (Linkage::Extern, global.ty, global.align)
                    && global.linkage == Linkage::Extern
            });
            let taken = earlier.is_some() || self.kernels.iter().any(|k| k.entry == name);
            if taken && !alike && state.error.is_none() {
                state.error = Some(BuildError::DuplicateName {
                    kernel: state.entry.clone(),
                    name: name.to_owned(),
                });
            }
            !alike
        });
        state.globals = globals;
    }

    /// The module.
    ///
    /// # Errors
    /// The first error, in the order of the builder's calls.
    pub fn finish(self) -> Result<PtxModule, BuildError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(finish::module(self.version, self.arch, self.kernels)),
        }
    }
}
